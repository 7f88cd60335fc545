"""Several processes of one server: the shared port, their own addresses, and what becomes of them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pawl import Client
from pawl.v1.admin_service_pb2 import GetServerInfoRequest, GetServerInfoResponse
from pawl_server.fleet.child import _Child
from pawl_server.fleet.orders import Lines, Order, Ready, Refusal, news, read_report, report
from pawl_server.settings import BadSetting, Settings
from tests.support.api import CALL_S, Api
from tests.support.processes import START_S, ServerProcess, serving
from tests.support.redis_server import RedisServer
from tests.support.stream import Stream, checkpoint, finish, refusal, started
from tests.support.wait import wait_until


class Fleet:
    """A server of several processes, as its log shows it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The lines of one kind."""
        found = [json.loads(line) for line in self.server.log.splitlines() if line.startswith("{")]
        return [line for line in found if line.get("event") == event]

    async def ready(self) -> str:
        """The shared address, once all processes serve."""
        line = await wait_until(lambda: self.lines("fleet_ready"), START_S, self.server.log)
        return re.findall(r"listen on (\S+)", line[0]["message"])[0]

    def process(self, number: int) -> dict[str, Any]:
        """Pid, run and address of a process, the latest one of that number."""
        return [line for line in self.lines("process_started") if line["number"] == number][-1]

    def kill(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to a process."""
        os.kill(self.process(number)["pid"], how)

    async def again(self, number: int) -> None:
        """Waits until a process that has ended serves again."""
        await wait_until(
            lambda: len([1 for line in self.lines("process_started") if line["number"] == number]) > 1,
            START_S,
        )


@asynccontextmanager
async def fleet(folder: Path, processes: int = 2, **env: str) -> AsyncIterator[Fleet]:
    """A server of several processes; it need not start."""
    async with serving(folder, PAWL_PROCESSES=str(processes), PAWL_LOG_FORMAT="json", **env) as server:
        yield Fleet(server)


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def loads_grpc(pid: int) -> bool:
    """Whether a process has gRPC in its memory."""
    return "cygrpc" in Path(f"/proc/{pid}/maps").read_text()


async def info(address: str) -> GetServerInfoResponse:
    """What the server at an address says, by a connection of its own."""
    async with Api(address) as api:
        return await api.admin.GetServerInfo(GetServerInfoRequest(), timeout=CALL_S)


@pytest.mark.slow
@pytest.mark.spec("R-FLEET-1")
async def test_processes_share_a_port_and_have_addresses_of_their_own(tmp_path: Path) -> None:
    async with fleet(tmp_path) as server:
        address = await server.ready()
        own = {server.process(number)["run"]: server.process(number)["reached"] for number in (0, 1)}
        for run, reached in own.items():
            said = await info(reached)
            assert (said.server_run, said.address) == (run, reached)
        found = set()

        async def all_found() -> bool:
            said = await info(address)
            found.add((said.server_run, said.address))
            return found == set(own.items())

        await wait_until(all_found, what="new connections come to every process")
        await wait_until(lambda: names_all(address, own), what="each names all")
        names = {(await info(reached)).server_name for reached in own.values()}
        assert {name.rpartition("-")[2] for name in names} == {"0", "1"}
        assert not loads_grpc(server.server.pid)
        assert all(loads_grpc(server.process(number)["pid"]) for number in (0, 1))


async def names_all(address: str, own: dict[str, str]) -> bool:
    """Whether a server names all of them."""
    return {one.server_run: one.address for one in (await info(address)).fleet.servers} == own


@pytest.mark.slow
@pytest.mark.spec("R-FLEET-2", "R-SERVER-1")
async def test_a_process_that_dies_is_started_again_and_its_turns_go_on(tmp_path: Path) -> None:
    async with fleet(tmp_path) as server:
        address = await server.ready()
        before = server.process(0)
        async with Api(before["reached"]) as doomed, Stream(doomed, credits=1) as stream:
            turn = await started(doomed, stream)
            await stream.command(turn, checkpoint("one"))
            server.kill(0)
            async with Client(address) as client:  # which may have been on its way to the dead one
                await client.create("meanwhile", "t", version="v1")
            async with (
                Api(server.process(1)["reached"]) as api,
                Stream(api, session="heir", credits=1) as heir,
            ):
                again = await heir.turn()
                assert [step.key for step in again.steps] == ["one"]
                assert again.last_failure.reason == "WORKER_LOST"
                assert refusal(await heir.command(again, finish()))[0] == ""
        await server.again(0)
        ended = server.lines("process_ended")
        assert [(line["number"], line["code"]) for line in ended] == [(0, -9)]
        after = server.process(0)
        assert after["run"] != before["run"]
        assert (await info(after["reached"])).server_run == after["run"]
        assert await server.server.stop() == 0


@pytest.mark.slow
@pytest.mark.spec("R-FLEET-3")
async def test_a_signal_stops_all_processes_in_good_order(tmp_path: Path) -> None:
    async with fleet(tmp_path, PAWL_STOP_GRACE_MS="5000") as server:
        await server.ready()
        pids = [server.process(number)["pid"] for number in (0, 1)]
        async with Api(server.process(0)["reached"]) as api, Stream(api, credits=1) as stream:
            turn = await started(api, stream)
            server.server.terminate()
            await stream.drained()
            assert refusal(await stream.command(turn, finish()))[0] == "", "what runs may end"
        assert await server.server.ended() == 0
        assert all(gone(pid) for pid in pids)
        assert {line["proc"] for line in server.lines("server_stopped")} == {"0", "1", "parent"}
        assert not server.lines("process_ended")


@pytest.mark.slow
@pytest.mark.spec("R-FLEET-3")
async def test_a_process_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    async with fleet(tmp_path) as server:
        await server.ready()
        server.kill(1, signal.SIGSTOP)
        pid = server.process(1)["pid"]
        server.server.terminate()
        assert await server.server.ended() == 1
        assert gone(pid)
        assert [line["number"] for line in server.lines("process_killed")] == [1]


@pytest.mark.slow
@pytest.mark.spec("R-FLEET-3")
async def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    async with fleet(tmp_path, PAWL_STOP_GRACE_MS="60000") as server:
        await server.ready()
        pids = [server.process(number)["pid"] for number in (0, 1)]
        async with Api(server.process(0)["reached"]) as api, Stream(api, credits=1) as stream:
            await started(api, stream)
            server.server.terminate()
            await stream.drained()
            server.server.terminate()
            assert await server.server.ended() == -signal.SIGTERM
        await wait_until(lambda: all(gone(pid) for pid in pids))


@pytest.mark.slow
@pytest.mark.spec("R-FLEET-3", "R-EMBED-3")
async def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    async with fleet(tmp_path) as server:
        await server.ready()
        pids = [server.process(number)["pid"] for number in (0, 1)]
        pids.append(json.loads((tmp_path / ".pawl" / "server.json").read_text())["pid"])
        await server.server.kill()
        await wait_until(lambda: all(gone(pid) for pid in pids))


@pytest.mark.slow
@pytest.mark.spec("R-FLEET-2")
async def test_processes_outlive_their_store(tmp_path: Path) -> None:
    async with fleet(tmp_path) as server:
        address = await server.ready()
        async with Api(address) as api:
            await api.create("kept")
        note = tmp_path / ".pawl" / "server.json"
        before = json.loads(note.read_text())["pid"]
        os.kill(before, signal.SIGKILL)
        await wait_until(lambda: json.loads(note.read_text())["pid"] != before)

        async def kept() -> bool:
            return bool((await info(address)).store_reachable)

        await wait_until(kept)
        assert not server.lines("process_ended")


@pytest.mark.slow
@pytest.mark.spec("R-FLEET-4")
async def test_what_is_in_the_way_of_a_start_is_said_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with fleet(tmp_path, PAWL_PORT=str(port)) as server:
            assert await server.server.ended() == 1
        (line,) = server.lines("server_refused")
        assert f"another program listens on 127.0.0.1:{port}" in line["message"]
    async with fleet(tmp_path) as first:
        await first.ready()
        async with fleet(tmp_path) as second:
            assert await second.server.ended() == 1
        (line,) = second.lines("server_refused")
        assert f"in use by process {first.server.pid}" in line["message"]


@pytest.mark.slow
@pytest.mark.spec("R-FLEET-4")
async def test_a_process_that_can_not_start_at_first_ends_all(tmp_path: Path) -> None:
    nobody = f"unix://{tmp_path}/nobody"
    async with fleet(tmp_path, PAWL_REDIS_URL=nobody, PAWL_START_TIMEOUT_MS="300") as server:
        assert await server.server.ended() == 1
        (line,) = server.lines("server_refused")
        assert nobody in line["message"]
        assert "Traceback" not in server.server.log


@pytest.mark.slow
@pytest.mark.spec("R-FLEET-2")
async def test_a_process_that_can_not_start_again_is_tried_on(tmp_path: Path) -> None:
    with RedisServer(aof="always") as redis:
        async with fleet(tmp_path, PAWL_REDIS_URL=redis.url, PAWL_START_TIMEOUT_MS="5000") as server:
            await server.ready()
            redis.kill()
            server.kill(0)
            await wait_until(lambda: server.lines("process_refused"), START_S)
            redis.start()
            await server.again(0)
            assert await server.server.stop() == 0


# What parent and child tell each other


def test_orders_and_reports_come_through_as_they_are() -> None:
    order = Order(Settings(redis_url="redis://user:secret@host:1/0", data_dir=Path("/x")), 3)
    assert Order.read(order.line()) == order
    for said in (Ready("a:1", "a:2", "run", "", "risk"), Refusal("CANNOT_START", "why\nnot", 1)):
        assert report(said).count(b"\n") == 1
        assert read_report(report(said)) == said
    assert read_report(b"") is None
    assert read_report(report(Ready("a:1", "a:2", "run", "", ""))[:-5]) is None


def test_lines_are_read_as_they_become_complete() -> None:
    end, start = os.pipe()
    lines = Lines(end)
    os.write(start, b"one\ntw")
    assert lines.read() == [b"one"]
    os.write(start, b"o\nthree\n")
    assert lines.read() == [b"two", b"three"]
    os.close(start)
    assert (lines.read(), lines.ended) == ([], True)
    os.close(end)


async def test_a_process_hears_of_a_full_disk_and_of_the_end() -> None:
    end, start = os.pipe()
    child = _Child(Order(Settings(), 0), Lines(end))
    for low in (True, False, True):
        os.write(start, news(low_disk=low))
        child.hear()
        assert child.low_disk is low
    child.take_in([b"{}"])
    assert child.low_disk
    assert not child.stop.is_set()
    os.close(start)
    child.hear()
    assert child.stop.is_set()
    os.close(end)


@pytest.mark.parametrize(
    ("fields", "variable"),
    [
        ({"processes": 0}, "PAWL_PROCESSES"),
        ({"processes": 65}, "PAWL_PROCESSES"),
        ({"processes": 2, "host": "unix:/tmp/x"}, "PAWL_PROCESSES"),
        ({"processes": 2, "virtual_time": True}, "PAWL_VIRTUAL_TIME"),
        ({"advertise_host": "not a host"}, "PAWL_ADVERTISE_HOST"),
        ({"stream_max_age_ms": -1}, "PAWL_STREAM_MAX_AGE_MS"),
        ({"stream_max_age_ms": 86_400_001}, "PAWL_STREAM_MAX_AGE_MS"),
    ],
)
def test_settings_that_can_not_be(fields: dict[str, Any], variable: str) -> None:
    with pytest.raises(BadSetting) as caught:
        Settings(**fields)
    assert caught.value.setting == variable


def test_settings_at_their_bounds() -> None:
    Settings(processes=64, advertise_host="server-1.example", stream_max_age_ms=86_400_000)
    Settings(processes=1, host="unix:/tmp/x", advertise_host="::1", stream_max_age_ms=0)
