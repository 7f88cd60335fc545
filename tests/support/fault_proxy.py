"""A proxy that breaks connections on purpose, between server and Redis or between worker and server.

    async with FaultProxy(server.url) as proxy:
        … connect to proxy.url …
        proxy.down.drop(1)        the next reply never arrives: its connection is cut instead
        proxy.half_open()         open connections swallow everything and are never closed
        proxy.silence()           so do new ones, until proxy.heal(); then those that were open stay dead
        proxy.cut()               open connections end now, with a reset over TCP
        proxy.up.hold()           bytes wait until proxy.up.release()
        proxy.down.delay = 0.05   each piece waits that many seconds
        proxy.refuse()            new connections are closed at once until proxy.accept()

`up` is towards the target, `down` towards the client. Rules of `up` and `down` hold for connections that
exist and for new ones. Faults come from what the test calls, never from chance, and the proxy can show what
it saw: `links` with how each one `began`, `up.seen`, `down.seen`.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import struct
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

PIECE = 1 << 16
BEGAN = 4096
"""Bytes that are kept of what a client said first."""


class Direction:
    """What happens to bytes that go one way. `seen` counts the bytes that reached the proxy."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.piece = PIECE
        self.seen = 0
        self.dropped = 0
        self._drops = 0
        self._containing = b""
        self._open = asyncio.Event()
        self._open.set()

    def drop(self, count: int = 1, containing: bytes = b"") -> None:
        """Loses the next `count` pieces that have `containing` in them.

        The connection of each ends with it, as it does when a reply is lost.
        """
        self._drops += count
        self._containing = containing

    def hold(self) -> None:
        """Keeps all bytes back until `release`."""
        self._open.clear()

    def release(self) -> None:
        """Lets held bytes go, in order."""
        self._open.set()

    async def admit(self, data: bytes) -> bool:
        """Waits as the rules say; False if the piece is lost."""
        self.seen += len(data)
        if self._drops and self._containing in data:
            self._drops -= 1
            self.dropped += 1
            return False
        await self._open.wait()
        if self.delay:
            await asyncio.sleep(self.delay)
        return True


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: FaultProxy, client: asyncio.StreamWriter) -> None:
        self.swallows = False
        self.open = True
        self.began = b""
        self._moves = asyncio.Event()
        self._moves.set()
        self._proxy = proxy
        self._client = client
        self._target: asyncio.StreamWriter | None = None

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Carries bytes both ways until one side ends; a half-open link outlives both sides."""
        try:
            answers, self._target = await self._proxy.connect_target()
        except OSError:
            self.cut()
            return
        up = self._pump(reader, self._target, self._proxy.up)
        down = self._pump(answers, self._client, self._proxy.down)
        await asyncio.gather(up, down)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Direction) -> None:
        try:
            while data := await source.read(way.piece):
                if way is self._proxy.up and len(self.began) < BEGAN:
                    self.began += data[: BEGAN - len(self.began)]
                if self.swallows:
                    continue
                if not await way.admit(data):
                    break
                await self._moves.wait()
                if not self.swallows and self.open:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        if not self.swallows:
            self.cut(reset=False)

    def hold(self) -> None:
        """Keeps this connection's bytes back, both ways, until `release`, even if the client goes away."""
        self._moves.clear()

    def release(self) -> None:
        """Lets held bytes go on."""
        self._moves.set()

    def cut(self, *, reset: bool = True) -> None:
        """Ends both sides at once, over TCP with RST when `reset`."""
        self.open = False
        for writer in (self._client, self._target):
            if writer is None:
                continue
            raw = writer.get_extra_info("socket")
            if reset and raw is not None and raw.family != socket.AF_UNIX:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class FaultProxy:
    """Listens on a unix socket (or on 127.0.0.1 with `tcp=True`) and carries bytes to `target`.

    `target` is a `unix:///path`, `redis://host:port` or `host:port`. `url` is where clients connect, in the
    form of the target (`host:port` for TCP targets given that way).
    """

    def __init__(self, target: str, *, tcp: bool | None = None, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(target if "://" in target else f"//{target}")
        self._scheme = parts.scheme
        self._path = unquote(parts.path) if parts.scheme == "unix" else ""
        self._host, self._port = parts.hostname or "", (parts.port or 0) if not self._path else 0
        self._tcp = not self._path if tcp is None else tcp
        self._tls = tls
        self._dir = ""
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._refuses = False
        self._silent = False
        self.up = Direction()
        self.down = Direction()
        self.links: list[Link] = []
        self.refused = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        if self._tcp:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
            self.port = self._server.sockets[0].getsockname()[1]
            address = f"127.0.0.1:{self.port}"
            self.url = f"redis://{address}" if self._scheme else address
        else:
            self._dir = tempfile.mkdtemp(prefix="pawlp-")
            path = Path(self._dir) / "p"
            self._server = await asyncio.start_unix_server(self._accept, path)
            self.url = f"unix://{path}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._dir:
            shutil.rmtree(self._dir, ignore_errors=True)

    async def connect_target(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the target."""
        if self._path:
            return await asyncio.open_unix_connection(self._path)
        return await asyncio.open_connection(self._host, self._port)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self, writer)
        if self._refuses:
            self.refused += 1
            link.cut()
            return
        link.swallows = self._silent
        self.links.append(link)
        task = asyncio.ensure_future(link.run(reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def open_links(self) -> list[Link]:
        """Connections that have not ended."""
        return [link for link in self.links if link.open]

    def cut(self) -> None:
        """Ends all connections now."""
        for link in self.open_links:
            link.cut()

    def half_open(self) -> None:
        """From now on the existing connections carry nothing and do not end; new ones are fine."""
        for link in self.open_links:
            link.swallows = True

    def silence(self) -> None:
        """From now on no connection, new ones included, carries anything or ends: packets get lost."""
        self.half_open()
        self._silent = True

    def heal(self) -> None:
        """New connections work again; those that were open have been forgotten by the other side."""
        self._silent = False

    def refuse(self) -> None:
        """Closes new connections at once."""
        self._refuses = True

    def accept(self) -> None:
        """Undoes `refuse`."""
        self._refuses = False


class Balancer(FaultProxy):
    """Carries new connections to the first of its `targets`, each a `host:port`, which may change."""

    def __init__(self, *targets: str) -> None:
        super().__init__(targets[0])
        self.targets = list(targets)

    async def connect_target(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.targets[0].rpartition(":")
        return await asyncio.open_connection(host, int(port))


class Dealer(Balancer):
    """Deals connections out in turn, past targets where nobody listens."""

    async def connect_target(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in self.targets:
            self.targets.append(self.targets.pop(0))
            try:
                return await super().connect_target()
            except ConnectionRefusedError:
                continue
        raise ConnectionRefusedError
