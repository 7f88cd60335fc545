"""The server as a process: `python -m pawl_server`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from pawl.v1 import turn_service_pb2 as turns
from tests.support.api import Api, refusal_of, spec
from tests.support.api import json as payload
from tests.support.processes import serving


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    async with serving(tmp_path, PAWL_LOG_FORMAT="text") as server, Api(await server.listening()) as api:
        await api.create("a")
        server.child.send_signal(number)
        assert await server.ended() == 0
    assert "stopped" in server.log
    assert f"folder={tmp_path}/.pawl" in server.log
    for word in ("store=", "durability=fsync", "namespace=default", "run=", "version="):
        assert word in server.log


@pytest.mark.spec("R-EMBED-2", "R-SEND-1")
async def test_what_was_acknowledged_is_there_after_kill_9(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, Api(await server.listening()) as api:
        sent = await api.send("a", "m", "keep me", create_if_absent=spec())
        await server.kill()
    async with serving(tmp_path) as server, Api(await server.listening()) as api:
        turn = (await api.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=1))).turn
        assert turn.message == payload("keep me")
        assert await api.send("a", "m", "keep me") == sent
        assert (await refusal_of(api.send("a", "m", "other"))).reason == "BODY_CONFLICT"


@pytest.mark.spec("R-EMBED-1")
async def test_two_servers_on_one_folder(tmp_path: Path) -> None:
    async with serving(tmp_path) as first:
        await first.listening()
        async with serving(tmp_path) as second:
            assert await second.ended() == 1
    assert str(tmp_path) in second.log
    assert "Traceback" not in second.log


@pytest.mark.spec("R-STORE-7")
async def test_no_redis_is_an_error_in_one_line(tmp_path: Path) -> None:
    env = {"PAWL_REDIS_URL": f"unix://{tmp_path}/nobody", "PAWL_START_TIMEOUT_MS": "300"}
    async with serving(tmp_path, **env) as server:
        assert await server.ended() == 1
    (line,) = [line for line in server.log.splitlines() if "can't start" in line]
    assert f"{tmp_path}/nobody" in line
    assert "Traceback" not in server.log


async def test_a_bad_setting_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path, PAWL_HOST="0.0.0.0") as server:
        assert await server.ended() == 2
    assert "PAWL_HOST" in server.log
    assert "PAWL_INSECURE" in server.log


async def test_a_log_of_json(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.listening()
        server.terminate()
        assert await server.ended() == 0
    records = [json.loads(line) for line in server.log.splitlines()]
    (listening,) = [record for record in records if record["message"].startswith("listening")]
    assert listening["namespace"] == "default"
    assert listening["partitions"] == 2
    assert {"time", "level", "logger"} <= set(listening)
