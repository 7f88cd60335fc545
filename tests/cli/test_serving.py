"""`pawl dev`, `pawl server` and `pawl worker` as processes: what they say, how they end, what survives."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pawl.cli.exits import Exit
from pawl.cli.main import main
from tests.cli.conftest import Child
from tests.support.redis_server import RedisServer, redis_server, redis_url
from tests.support.wait import wait_until_sync

__all__ = ["redis_server", "redis_url"]

Start = Callable[..., Child]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, for unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="pawlc-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def pawl(address: str, *words: str) -> str:
    shown = CliRunner().invoke(main, [*words, "--address", address])
    assert shown.exit_code == 0, shown.stderr
    return shown.stdout


def errors(folder: Path) -> str:
    return (folder / "stderr.txt").read_text()


def test_dev_says_what_it_runs_and_stops_cleanly(start: Start, folder: Path) -> None:
    server = start("dev", "--port", "0", cwd=folder)
    facts = server.facts
    assert facts["pid"] == server.process.pid
    assert facts["folder"] == str(folder / ".pawl")
    assert (facts["durability"], facts["namespace"]) == ("fsync", "default")
    assert facts["address"].startswith("127.0.0.1:")
    store = json.loads((folder / ".pawl" / "server.json").read_text())["pid"]
    assert server.end(signal.SIGINT) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(store, 0)
    assert "Traceback" not in errors(folder)


def test_dev_runs_several_processes(start: Start, folder: Path) -> None:
    server = start("dev", "--processes", "2", "--port", "0", cwd=folder)
    facts = server.facts
    assert (facts["pid"], facts["processes"]) == (server.process.pid, 2)
    assert facts["folder"] == str(folder / ".pawl")
    assert "cygrpc" not in Path(f"/proc/{facts['pid']}/maps").read_text()
    pawl(facts["address"], "create", "kept", "--type", "t", "--version", "v1")
    for _ in range(8):  # whichever process answers
        assert json.loads(pawl(facts["address"], "get", "kept", "--json"))["id"] == "kept"
    assert server.end(signal.SIGINT) == 0
    assert "Traceback" not in errors(folder)


def test_several_processes_that_can_not_start(start: Start, folder: Path) -> None:
    first = start("dev", "--port", "0", cwd=folder)
    second = start("dev", "--processes", "2", "--port", "0", cwd=folder)
    assert second.wait() == Exit.FAILED
    error = json.loads(errors(folder).splitlines()[-1])["error"]
    assert (error["reason"], error["exit_code"]) == ("CANNOT_START", Exit.FAILED)
    assert f"in use by process {first.process.pid}" in error["message"]
    environment = {"PAWL_START_TIMEOUT_MS": "300"}
    nowhere = f"unix://{folder}/nothing"
    words = ("server", "--processes", "2", "--redis", nowhere, "--port", "0")
    third = start(*words, cwd=folder, env=environment)
    assert third.wait() == Exit.UNAVAILABLE
    assert json.loads(errors(folder).splitlines()[-1])["error"]["reason"] == "STORE_UNAVAILABLE"


def test_dev_with_several_processes_ends_when_its_input_closes(start: Start, folder: Path) -> None:
    server = start("dev", "--processes", "2", "--port", "0", "--until-stdin-closes", cwd=folder)
    assert server.process.stdin is not None
    server.process.stdin.close()
    assert server.wait() == 0


def test_dev_keeps_its_data_over_restarts(start: Start, folder: Path) -> None:
    first = start("dev", "--data-dir", "data", "--port", "0", cwd=folder)
    pawl(first.facts["address"], "create", "kept", "--type", "t", "--version", "v1", "--state", "[1]")
    assert first.end() == 0
    second = start("dev", "--data-dir", "data", "--port", "0", cwd=folder)
    assert json.loads(pawl(second.facts["address"], "get", "kept", "--json"))["state"] == [1]


def test_dev_keeps_its_data_over_a_kill(start: Start, folder: Path) -> None:
    first = start("dev", "--port", "0", cwd=folder)
    pawl(first.facts["address"], "create", "kept", "--type", "t", "--version", "v1")
    first.process.kill()
    first.wait()
    second = start("dev", "--port", "0", cwd=folder)
    assert json.loads(pawl(second.facts["address"], "get", "kept", "--json"))["id"] == "kept"


def test_dev_outlives_its_store(start: Start, folder: Path) -> None:
    server = start("dev", "--port", "0", cwd=folder)
    address = server.facts["address"]
    pawl(address, "create", "kept", "--type", "t", "--version", "v1")
    note = folder / ".pawl" / "server.json"
    before = json.loads(note.read_text())["pid"]
    os.kill(before, signal.SIGKILL)
    wait_until_sync(lambda: json.loads(note.read_text())["pid"] != before, 10, "the store is started again")
    assert json.loads(pawl(address, "get", "kept", "--json"))["id"] == "kept"
    assert server.end() == 0


def test_a_folder_serves_one_server(start: Start, folder: Path) -> None:
    start("dev", "--port", "0", cwd=folder)
    second = start("dev", "--port", "0", cwd=folder)
    assert second.wait() == Exit.FAILED
    error = json.loads(errors(folder).splitlines()[-1])["error"]
    assert error["reason"] == "CANNOT_START"
    assert str(folder / ".pawl") in error["message"]


def test_a_folder_in_use_is_said_before_the_port(start: Start, folder: Path) -> None:
    first = start("dev", "--port", "0", cwd=folder)
    port = first.facts["address"].rpartition(":")[2]
    second = start("dev", "--port", port, cwd=folder)
    assert second.wait() == Exit.FAILED
    assert f"in use by process {first.process.pid}" in errors(folder)
    assert errors(folder).count("\n") == 1


def test_a_port_that_is_taken(start: Start, folder: Path) -> None:
    first = start("dev", "--port", "0", cwd=folder)
    port = first.facts["address"].rpartition(":")[2]
    second = start("dev", "--data-dir", "other", "--port", port, cwd=folder)
    assert second.wait() == Exit.FAILED
    said = errors(folder)
    assert said.count("\n") == 1, "and nothing of gRPC's own"
    text = f"another program listens on 127.0.0.1:{port}; stop it or give --port (PAWL_PORT)"
    assert json.loads(said)["error"]["message"] == text
    again = start("dev", "--data-dir", "other", "--port", "0", cwd=folder)
    assert again.facts["folder"] == str(folder / "other"), "the folder was given back"


def test_dev_ends_when_its_input_closes(start: Start, folder: Path) -> None:
    server = start("dev", "--port", "0", "--until-stdin-closes", cwd=folder)
    assert server.process.stdin is not None
    server.process.stdin.write("this is passed over\n")
    server.process.stdin.close()
    assert server.wait() == 0


def test_two_servers_share_a_store(start: Start, folder: Path, redis_url: str) -> None:
    one = start("server", "--redis", redis_url, "--port", "0", cwd=folder)
    two = start("dev", "--redis", redis_url, "--port", "0", cwd=folder)
    pawl(one.facts["address"], "create", "shared", "--type", "t", "--version", "v1")
    assert json.loads(pawl(two.facts["address"], "get", "shared", "--json"))["id"] == "shared"
    assert one.facts["folder"] is None
    assert one.facts["durability"] == "memory"
    assert "durability memory: a restart of Redis loses everything; set appendonly yes" in errors(folder)
    assert not (folder / ".pawl").exists()
    assert (one.end(), two.end()) == (0, 0)


def test_a_server_takes_its_store_from_the_environment(start: Start, folder: Path, redis_url: str) -> None:
    environment = {"PAWL_REDIS_URL": redis_url, "PAWL_PORT": "0", "PAWL_NAMESPACE": "other"}
    server = start("server", cwd=folder, env=environment)
    assert server.facts["namespace"] == "other"


def test_no_store_at_the_start(start: Start, folder: Path) -> None:
    environment = {"PAWL_START_TIMEOUT_MS": "300"}
    server = start(
        "server", "--redis", f"unix://{folder}/nothing", "--port", "0", cwd=folder, env=environment
    )
    assert server.wait() == Exit.UNAVAILABLE
    assert json.loads(errors(folder).splitlines()[-1])["error"]["reason"] == "STORE_UNAVAILABLE"


@pytest.mark.parametrize("words", [("get", "kept"), ("send", "kept", "1"), ("send", "kept", "--wait", "1")])
def test_commands_while_the_store_is_down(start: Start, folder: Path, words: tuple[str, ...]) -> None:
    with RedisServer() as redis:
        server = start("server", "--redis", redis.url, "--port", "0", cwd=folder)
        address = server.facts["address"]
        pawl(address, "create", "kept", "--type", "t", "--version", "v1")
        redis.kill()
        shown = CliRunner().invoke(main, [*words, "--address", address, "--timeout", "4"])
        assert shown.exit_code == Exit.UNAVAILABLE
        assert shown.stderr.startswith("error: STORE_UNAVAILABLE: the store did not answer")
        assert "(not reachable)" in pawl(address, "info")
        assert json.loads(pawl(address, "info", "--json"))["store_reachable"] is False
        assert server.end() == 0


def test_a_worker_says_what_it_runs_and_stops_cleanly(start: Start, dev_server: str) -> None:
    worker = start("worker", "examples.counter", "examples.document_pipeline:ingest", "--address", dev_server)
    assert worker.facts["workflows"] == ["counter v1", "ingest v1"]
    assert worker.facts["address"] == dev_server
    assert worker.end(signal.SIGINT) == 0


def test_a_worker_waits_for_its_server(start: Start) -> None:
    worker = start("worker", "examples.counter:counter", "--address", "127.0.0.1:1")
    assert worker.process.poll() is None
    assert worker.end() == 0


def test_info_names_every_server(start: Start, folder: Path, redis_url: str) -> None:
    one = start("server", "--redis", redis_url, "--port", "0", cwd=folder)
    two = start("dev", "--redis", redis_url, "--port", "0", cwd=folder)
    addresses = [one.facts["address"], two.facts["address"]]

    def named() -> bool:
        found = json.loads(pawl(addresses[0], "info", "--json"))
        assert found["own_address"] == addresses[0]
        return sorted(found["servers"].values()) == sorted(addresses)

    wait_until_sync(named, what="each knows the other")
    assert f"1 more: {addresses[1]}" in pawl(addresses[0], "info")
