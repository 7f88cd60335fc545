"""TCP addresses: whether one is free, how several processes share one, under which name others reach it.

Nothing here knows gRPC: the parent of several server processes must not load it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

_WILDCARDS = frozenset(("", "0.0.0.0", "::", "[::]"))
_SOMEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation: nobody has them, and nothing is sent to them."""


class AddressInUse(OSError):
    """The address can't be listened on; the text says why and what to do."""


def join(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _places(host: str, port: int) -> Iterator[tuple[socket.AddressFamily, int, int, tuple[Any, ...]]]:
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        yield family, kind, protocol, place


def probe(host: str, port: int) -> None:
    """Says what keeps an address from being taken; gRPC only says so to stderr. Raises AddressInUse."""
    try:
        for family, kind, protocol, place in _places(host, port):
            with socket.socket(family, kind, protocol) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(place)
                one.listen()
    except OSError as error:
        wanted = join(host, port)
        if error.errno == errno.EADDRINUSE:
            text = f"another program listens on {wanted}; stop it or give --port (PAWL_PORT)"
        else:
            text = f"can't listen on {wanted}: {error.strerror or error}"
        raise AddressInUse(text) from None


class Reservation:
    """A port that is kept for processes which share it by SO_REUSEPORT. Nobody is answered by it.

    The kernel hands connections to listeners alone, so the port stays ours while none of them runs, and is
    theirs as soon as one does.
    """

    def __init__(self, host: str, port: int) -> None:
        """Takes the port, 0 a free one. Raises AddressInUse."""
        probe(host, port)
        self.port = port
        self._sockets: list[socket.socket] = []
        try:
            for family, kind, protocol, place in _places(host, port):
                self._take(family, kind, protocol, place)
        except OSError as error:
            self.close()
            raise AddressInUse(f"can't listen on {join(host, port)}: {error.strerror or error}") from None

    def _take(self, family: socket.AddressFamily, kind: int, protocol: int, place: tuple[Any, ...]) -> None:
        one = socket.socket(family, kind, protocol)
        self._sockets.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind((place[0], self.port, *place[2:]))
        self.port = one.getsockname()[1]

    def close(self) -> None:
        """Gives the port back."""
        for one in self._sockets:
            one.close()


def reachable(host: str) -> str:
    """A host under which others find what listens on `host`: the machine's own address for a wildcard.

    Empty if the machine has no address to go out with.
    """
    if host not in _WILDCARDS:
        return host
    families = (socket.AF_INET6, socket.AF_INET) if ":" in host else (socket.AF_INET, socket.AF_INET6)
    for family in families:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as one:
                one.connect((_SOMEWHERE[family], 9))
                return one.getsockname()[0]
        except OSError:
            continue
    return ""
