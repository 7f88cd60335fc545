"""The address that serves metrics: what it answers, and that reading them holds nothing up."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple

import pytest

from pawl_server.app import CANNOT_START, Handle, running
from pawl_server.observe import catalogue as c
from pawl_server.observe import endpoint, waiting
from pawl_server.ports import AddressInUse
from tests.support.api import CALL_S, Api
from tests.support.fault_proxy import FaultProxy
from tests.support.metrics import Reading, observed
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.wait import wait_until

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


class Answer(NamedTuple):
    """What came back: the status, headers in lower case, and the body."""

    status: int
    headers: dict[str, str]
    body: str


async def ask(address: str, request: str | bytes = "GET /metrics HTTP/1.1") -> Answer:
    """One request; a text gets the end of its head."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        writer.write(f"{request}\r\n\r\n".encode() if isinstance(request, str) else request)
        raw = await asyncio.wait_for(reader.read(), CALL_S)
    finally:
        writer.close()
    if not raw:
        return Answer(0, {}, "")
    head, _, body = raw.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split(" ")[1]), headers, body)


@pytest.fixture
async def address(watched: tuple[Handle, Api]) -> str:
    """Where the metrics of a running server are."""
    assert watched[0].metrics is not None
    return watched[0].metrics.address


async def test_a_scrape(address: str) -> None:
    answer = await ask(address, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\nAccept: text/plain")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert int(answer.headers["content-length"]) == len(answer.body.encode())
    assert answer.headers["connection"] == "close"
    assert Reading.of(answer.body).get(c.READY) == 1
    assert "process_cpu_seconds_total " in answer.body
    assert "python_gc_collections_total{" in answer.body


async def test_open_metrics_for_whoever_asks_for_it(address: str) -> None:
    answer = await ask(address, f"GET /metrics HTTP/1.1\r\nACCEPT: {OPEN_METRICS}")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.body.endswith("# EOF\n")
    assert answer.body.count("# EOF") == 1
    assert "# TYPE pawl_claims counter" in answer.body


async def test_head_has_no_body(address: str) -> None:
    answer = await ask(address, "HEAD /metrics HTTP/1.0")
    assert (answer.status, answer.body) == (200, "")
    assert int(answer.headers["content-length"]) > 1_000


@pytest.mark.parametrize(
    ("request_line", "status", "text"),
    [
        ("GET / HTTP/1.1", 404, "there is nothing but /metrics\n"),
        ("GET /metrics/x HTTP/1.1", 404, "there is nothing but /metrics\n"),
        ("POST /metrics HTTP/1.1", 405, "only GET and HEAD\n"),
        ("GET /metrics", 400, "this is no HTTP/1 request\n"),
        ("PRI * HTTP/2.0", 400, "this is no HTTP/1 request\n"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, "this is no HTTP/1 request\n"),
        ("GET /metrics HTTP/1.1\r\nX: " + "x" * endpoint.HEAD_BYTES, 431, "the request has more than"),
    ],
)
async def test_what_is_no_scrape(address: str, request_line: str | bytes, status: int, text: str) -> None:
    answer = await ask(address, request_line)
    assert answer.status == status
    assert answer.body.startswith(text)
    assert answer.headers.get("allow") == ("GET, HEAD" if status == 405 else None)
    assert (await ask(address)).status == 200


async def test_who_asks_too_slowly_is_cut(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "ASK_S", 0.05)
    assert (await ask(address, b"GET /metrics HTT")).status == 0


async def test_a_bounded_number_of_readers(
    watched: tuple[Handle, Api], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "READERS", 2)
    host, _, port = address.rpartition(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    assert watched[0].metrics is not None
    readers = watched[0].metrics._endpoint._readers
    await wait_until(lambda: len(readers) == 2)
    answer = await ask(address)
    assert (answer.status, answer.body) == (503, "2 others read already\n")
    for _, writer in idle:
        writer.close()
    await wait_until(lambda: not readers)
    assert (await ask(address)).status == 200


@pytest.mark.spec("R-METRIC-1")
async def test_nothing_listens_unless_it_is_asked_for(redis_url: str) -> None:
    async with running(settings_for(redis_url)) as handle:
        assert handle.metrics is None


@pytest.mark.spec("R-METRIC-1")
async def test_an_address_that_is_taken_ends_the_start(redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = settings_for(redis_url, metrics_address=f"127.0.0.1:{port}")
        with pytest.raises(CANNOT_START, match=rf"127\.0\.0\.1:{port}.*PAWL_METRICS_ADDRESS") as refused:
            async with running(settings):
                raise AssertionError("it runs")
    assert isinstance(refused.value, AddressInUse)


async def test_it_ends_with_the_server(redis_server: RedisServer, redis_url: str) -> None:
    async with observed(redis_server, redis_url) as (handle, _):
        assert handle.metrics is not None
        address = handle.metrics.address
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    assert await asyncio.wait_for(reader.read(), CALL_S) == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await ask(address)


# Nothing is held up


@pytest.mark.spec("R-METRIC-1")
async def test_however_many_read_redis_is_asked_once(
    watched: tuple[Handle, Api], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FRESH_S", 3_600.0)
    handle, _ = watched

    def asked() -> int:
        tally = handle.engine.store.metrics["bulk"].scripts.get("stats")
        return tally.calls if tally is not None else 0

    pages = await asyncio.gather(*(ask(address) for _ in range(10)))
    assert {page.status for page in pages} == {200}
    assert all(c.READY_TURNS.name in page.body and c.STATS_AGE.name in page.body for page in pages)
    await ask(address)
    assert asked() == len(handle.engine.store.partitions)
    monkeypatch.setattr(waiting, "FRESH_S", 0.0)
    await ask(address)
    assert asked() == 2 * len(handle.engine.store.partitions)


@pytest.mark.spec("R-METRIC-1")
async def test_it_answers_while_redis_hangs(
    redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.05)
    async with FaultProxy(redis_url) as proxy, observed(redis_server, proxy.url) as (handle, _):
        assert handle.metrics is not None
        proxy.up.hold()
        first = Reading.of((await ask(handle.metrics.address)).body)
        assert first.get(c.READY) == 1
        assert c.STATS_AGE not in first, "nothing was read yet"
        proxy.up.release()

        async def known() -> bool:
            assert handle.metrics is not None
            return c.STATS_AGE in Reading.of((await ask(handle.metrics.address)).body)

        await wait_until(known)


async def test_other_tasks_run_between_the_families_of_a_page(watched: tuple[Handle, Api]) -> None:
    metrics = watched[0].metrics
    assert metrics is not None
    await metrics.page()
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    page, _ = await metrics.page()
    counting.cancel()
    assert rounds >= page.count(b"# TYPE ")
