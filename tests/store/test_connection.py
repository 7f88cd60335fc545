"""Addresses, credentials and TLS of a connection."""

from __future__ import annotations

import ssl
from pathlib import Path

import hiredis
import pytest

from pawl_server.store.connection import Endpoint, session, without_password
from pawl_server.store.errors import StoreRefused, StoreUnavailable
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_server import RedisServer

CERTIFICATE = Path(__file__).parent / "localhost.pem"
"""Self-signed certificate for `localhost` and its key, made for these tests, valid until 2126."""


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:7000/3", {"host": "h", "port": 7000, "db": 3, "tls": None}),
        ("redis://h", {"host": "h", "port": 6379, "db": 0}),
        ("redis://", {"host": "127.0.0.1", "port": 6379}),
        ("redis://me:p%40ss@h:1/0", {"username": "me", "password": "p@ss"}),
        ("redis://:secret@h", {"username": "", "password": "secret"}),
        ("unix:///run/a%20b/redis.sock?db=2", {"path": "/run/a b/redis.sock", "db": 2}),
        ("unix:///s?password=x", {"password": "x"}),
    ],
)
def test_urls(url: str, expected: dict[str, object]) -> None:
    endpoint = Endpoint.parse(url)
    assert {name: getattr(endpoint, name) for name in expected} == expected


def test_rediss_verifies_certificates_unless_told_not_to() -> None:
    strict, lax = Endpoint.parse("rediss://h"), Endpoint.parse("rediss://h?ssl_cert_reqs=none")
    assert strict.tls is not None
    assert strict.tls.verify_mode == ssl.CERT_REQUIRED
    assert strict.tls.check_hostname
    assert lax.tls is not None
    assert lax.tls.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    "url",
    ["http://h", "h:6379", "", "redis://h:notaport", "unix://", "redis://h?db=x", "rediss://h?ssl_nope=1"],
)
def test_urls_that_cannot_be_used_are_refused(url: str) -> None:
    with pytest.raises(StoreRefused) as caught:
        Endpoint.parse(url)
    assert caught.value.setting == "redis_url"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:secret@h:1/2", "redis://me:***@h:1/2"),
        ("redis://:secret@h", "redis://:***@h"),
        ("redis://h:1", "redis://h:1"),
        ("unix:///s?password=secret&db=1", "unix:///s?password=***&db=1"),
    ],
)
def test_passwords_are_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
    assert "secret" not in repr(Endpoint.parse(url))


async def test_a_password_and_a_database_are_used() -> None:
    with RedisServer(cluster=False) as server:
        server.call("ACL", "SETUSER", "me", "on", ">p@ss", "~*", "&*", "+@all")
        endpoint = Endpoint.parse(f"unix://me:p%40ss@{server.socket}?db=3")
        async with session(endpoint, "look") as wire:
            assert await wire.execute("ACL", "WHOAMI") == b"me"
            assert b"db=3" in await wire.execute("CLIENT", "INFO")
            assert b"name=look" in await wire.execute("CLIENT", "INFO")
        with pytest.raises(hiredis.ReplyError, match="WRONGPASS"):
            async with session(Endpoint.parse(f"unix://me:wrong@{server.socket}")):
                pass


async def test_commands_of_a_lost_session_fail(redis_url: str) -> None:
    async with FaultProxy(redis_url) as proxy, session(Endpoint.parse(proxy.url)) as wire:
        proxy.down.hold()
        future = wire.execute("PING")
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            await future
        with pytest.raises(StoreUnavailable, match="closed"):
            await wire.execute("PING")


async def test_tls(redis_url: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async with FaultProxy(redis_url, tcp=True, tls=context) as proxy:
        url = f"rediss://localhost:{proxy.port}"
        async with session(Endpoint.parse(f"{url}?ssl_ca_certs={CERTIFICATE}")) as wire:
            assert await wire.execute("PING") == b"PONG"
        with pytest.raises(ssl.SSLCertVerificationError):
            async with session(Endpoint.parse(url)):
                pass
