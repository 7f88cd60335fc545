"""How a connection to Redis is opened and made usable: address, TLS, AUTH, SELECT, role, scripts, `hello`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import hiredis

from pawl_server.domain.urls import without_password
from pawl_server.store.errors import ScriptFailed, StoreRefused, StoreUnavailable
from pawl_server.store.script_call import Script
from pawl_server.store.wire import Call, Wire

Factory = Callable[[], asyncio.BaseProtocol]

FORGIVEN = ("NOPERM", "ERR unknown")
"""Starts of errors that say a command is not to be had here, as on some managed servers."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and credentials of one Redis node. `shown` is the URL without its password."""

    shown: str
    host: str = ""
    port: int = 0
    path: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def parse_all(cls, url: str) -> list[Endpoint]:
        """Reads a URL that may name several hosts: `redis://me:secret@a:7000,b:7000`. Raises StoreRefused."""
        scheme, mark, rest = url.partition("://")
        netloc, slash, path = rest.partition("/")
        user, at, hosts = netloc.rpartition("@")
        if scheme == "unix" or "," not in hosts:
            return [cls.parse(url)]
        if not all(hosts.split(",")):
            raise StoreRefused(
                "redis_url", f"the URL {without_password(url)!r} has an empty host in its list"
            )
        return [cls.parse(f"{scheme}{mark}{user}{at}{host}{slash}{path}") for host in hosts.split(",")]

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Reads a `redis://`, `rediss://` or `unix://` URL, with the query options that redis-py knows.

        Raises StoreRefused, which never shows the password.
        """
        # Here and not above: redis-py takes a tenth of a second to import.
        from redis.asyncio.connection import SSLConnection, parse_url
        from redis.exceptions import RedisError

        try:
            options: dict[str, Any] = dict(parse_url(url))
            tls = options.pop("connection_class", None) is SSLConnection
            secure = {name: options[name] for name in options if name.startswith("ssl_")}
            if url.startswith("unix:") and not options.get("path"):
                raise ValueError("a unix:// URL needs a path, as in unix:///run/redis.sock")
            return cls(
                shown=without_password(url),
                host=options.get("host", "127.0.0.1"),
                port=options.get("port", 6379),
                path=options.get("path", ""),
                db=int(options.get("db", 0)),
                username=options.get("username", ""),
                password=options.get("password", ""),
                tls=SSLConnection(**secure).ssl_context.get() if tls else None,
            )
        except (ValueError, TypeError, OSError, RedisError) as error:
            raise StoreRefused(
                "redis_url", f"the URL {without_password(url)!r} cannot be used: {error}"
            ) from None

    def at(self, address: str) -> Endpoint:
        """Another node, `host:port`, with the same credentials."""
        host, _, port = address.rpartition(":")
        shown = f"{'rediss' if self.tls is not None else 'redis'}://{address}"
        return replace(self, shown=shown, host=host, port=int(port), path="")

    async def dial(self, factory: Factory) -> object:
        """Opens a connection that speaks through a protocol made by `factory`. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.path:
            return await loop.create_unix_connection(factory, self.path)
        name = self.host if self.tls is not None else None
        return await loop.create_connection(factory, self.host, self.port, ssl=self.tls, server_hostname=name)

    async def authenticate(self, wire: Wire, name: str = "pawl") -> None:
        """AUTH, SELECT and CLIENT SETNAME. Raises hiredis.ReplyError."""
        if self.password or self.username:
            user = (self.username,) if self.username else ()
            await wire.execute("AUTH", *user, self.password)
        if self.db:
            await wire.execute("SELECT", self.db)
        await forgiving(wire.execute("CLIENT", "SETNAME", name))


async def forgiving(reply: Awaitable[Any]) -> Any:
    """The reply, or None where this server does not know the command or does not allow it."""
    try:
        return await reply
    except hiredis.ReplyError as error:
        if str(error).startswith(FORGIVEN):
            return None
        raise


def parse_info(text: bytes) -> dict[str, str]:
    """The fields of an INFO reply."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


class Preparation:
    """Makes fresh connections of one lane usable.

    `hello` is run last, for each partition, with the server's run id; it raises to refuse the connection.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        scripts: Sequence[Script[Any]],
        hello: Callable[[Wire], Awaitable[None]],
    ) -> None:
        self._endpoint = endpoint
        self._name = name
        self._scripts = scripts
        self._hello = hello
        self._previous: tuple[bytes, int] | None = None

    async def __call__(self, wire: Wire) -> None:
        """Raises StoreUnavailable, StoreRefused or hiredis.ReplyError if the connection must not be used."""
        await self._endpoint.authenticate(wire, self._name)
        info = parse_info(await wire.execute("INFO", "server"))
        wire.run_id = info.get("run_id", "").encode()
        await require_primary(wire)
        await self._end_previous(wire)
        loads = [wire.execute("SCRIPT", "LOAD", script.text) for script in self._scripts]
        for script, loaded in zip(self._scripts, loads, strict=True):
            await _loaded(script, loaded)
        await self._hello(wire)

    async def _end_previous(self, wire: Wire) -> None:
        """Closes the lane's last connection on Redis' side, if it is the same process.

        A connection that was given up may still hold commands that Redis has not read. Repeats run on the new
        one; without this, the first sending could run after its repeat.
        """
        if self._previous is not None and self._previous[0] == wire.run_id:
            try:
                await wire.execute("CLIENT", "KILL", "ID", self._previous[1])
            except hiredis.ReplyError:
                pass  # not allowed; receipts still answer whichever comes second
        wire.client_id = await forgiving(wire.execute("CLIENT", "ID")) or 0
        self._previous = (wire.run_id, wire.client_id) if wire.client_id else None


async def _loaded(script: Script[Any], loaded: Awaitable[Any]) -> None:
    try:
        await loaded
    except hiredis.ReplyError as error:
        if "compiling" in str(error):
            raise ScriptFailed(script.name, str(error)) from None
        raise


async def require_primary(wire: Wire) -> None:
    """Raises StoreUnavailable unless the server is a primary: a replica's data may be behind."""
    role = await forgiving(wire.execute("ROLE"))
    if role is None:
        role = [parse_info(await wire.execute("INFO", "replication")).get("role", "").encode()]
    if role[0] != b"master":
        raise StoreUnavailable(f"this Redis is a {role[0].decode()}, not a primary", maybe_applied=False)


class _Solo:
    """Owner of a wire outside any lane: nothing is repeated."""

    def on_error(self, wire: Wire, call: Call, error: hiredis.ReplyError) -> None:
        if not call.future.done():
            call.future.set_exception(error)

    def on_progress(self, wire: Wire) -> None:
        pass

    def on_lost(self, wire: Wire, why: str) -> None:
        for call in wire.unanswered:
            if not call.future.done():
                call.future.set_exception(StoreUnavailable(why))


@asynccontextmanager
async def session(endpoint: Endpoint, name: str = "pawl") -> AsyncIterator[Wire]:
    """An authenticated connection for a few commands, through `Wire.execute`.

    Raises OSError, hiredis.ReplyError or StoreUnavailable. The caller limits the time.
    """
    wire = Wire(_Solo(), asyncio.get_running_loop())
    try:
        await endpoint.dial(lambda: wire)
        await endpoint.authenticate(wire, name)
        yield wire
    finally:
        wire.abort()
