"""A small HTTP server for one page. It runs in the server's event loop and holds nothing up.

It answers GET and HEAD of one path, one request per connection, to a bounded number of readers, each of which
has a bounded time to ask and to take the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from pawl_server.ports import AddressInUse

Page = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Makes the page for a header Accept: the bytes and their content type."""

HEAD_BYTES = 16 << 10
"""Longest request, its headers included."""
ASK_S = 5.0
"""How long a reader has for its request."""
TAKE_S = 10.0
"""How long a reader has to take the page."""
READERS = 16
"""Connections at a time; more are answered 503."""
_PLAIN = "text/plain; charset=utf-8"


class Refusal(Exception):
    """Why a request gets no page."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Endpoint:
    """Serves `page` at `path`. `address` is what can be read, once it listens."""

    def __init__(self, path: str, page: Page) -> None:
        self.address = ""
        self._path = path
        self._page = page
        self._server: asyncio.Server | None = None
        self._readers: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> None:
        """Listens. Raises AddressInUse, which names the address."""
        shown = f"[{host}]" if ":" in host else host
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=HEAD_BYTES)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            why = "another program listens there" if taken else (error.strerror or str(error))
            raise AddressInUse(
                f"metrics can't be served on {shown}:{port}: {why}; see --metrics (PAWL_METRICS_ADDRESS)"
            ) from None
        self.address = f"{shown}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Gives the address back and cuts whoever still reads."""
        if self._server is not None:
            self._server.close()
        for task in list(self._readers):
            task.cancel()
        if self._readers:
            await asyncio.wait(self._readers)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="metrics reader")
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, body, kind, status = "GET", b"", _PLAIN, HTTPStatus.OK
        try:
            async with asyncio.timeout(ASK_S):
                method, accept = self._request(await self._head(reader))
            body, kind = await self._page(accept)
        except Refusal as refusal:
            status, body = refusal.status, f"{refusal.text}\n".encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        head += f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n"
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            head += "Allow: GET, HEAD\r\n"
        writer.write(f"{head}\r\n".encode() + (b"" if method == "HEAD" else body))
        async with asyncio.timeout(TAKE_S):
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _head(self, reader: asyncio.StreamReader) -> list[str]:
        """The lines of the request's head. Raises Refusal."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            text = f"the request has more than {HEAD_BYTES} bytes"
            raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text) from None
        if len(self._readers) > READERS:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{READERS} others read already")
        return head.decode("latin-1").split("\r\n")

    def _request(self, head: list[str]) -> tuple[str, str]:
        """The method and the header Accept. Raises Refusal for anything but a reader of the page."""
        words = head[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise Refusal(HTTPStatus.BAD_REQUEST, "this is no HTTP/1 request")
        method, target = words[0], words[1].partition("?")[0]
        if target != self._path:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is nothing but {self._path}")
        if method not in ("GET", "HEAD"):
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        accept = ""
        for line in head[1:]:
            name, _, value = line.partition(":")
            if name.strip().lower() == "accept":
                accept = value.strip()
        return method, accept
