"""A server's private channel, as another server would listen to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.driver import Driver
from tests.support.redis_server import Control


class Listener:
    """What was published to one server of one partition."""

    def __init__(self, control: Control, channel: str) -> None:
        self._control = control
        control.send("SSUBSCRIBE", channel)
        assert control.receive()[0] == b"ssubscribe"

    def heard(self) -> list[str]:
        """The messages since the last look, in order."""
        self._control.send("PING")
        found: list[str] = []
        while (message := self._control.receive())[0] == b"smessage":
            found.append(message[2].decode())
        assert message[0] == b"pong"
        return found


@contextmanager
def listening(driver: Driver, *servers: str) -> Iterator[list[Listener]]:
    """Listens as each of `servers`."""
    with driver.redis.connections(len(servers)) as controls:
        yield [
            Listener(control, f"{driver.tag}ch:{server}")
            for control, server in zip(controls, servers, strict=True)
        ]
