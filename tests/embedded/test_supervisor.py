"""The private server: one per folder, data kept, restarted when it dies, gone when we are."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hiredis
import pytest

from pawl_server.embedded import EmbeddedError, FolderInUse, ServerDidNotStart
from pawl_server.store.client import Store, StoreSettings
from pawl_server.store.errors import StoreUnavailable
from tests.embedded.conftest import Start
from tests.support.wait import wait_until

Call = Callable[..., Any]

PARENT = """
import asyncio, sys
from pathlib import Path
from pawl_server.embedded import EmbeddedServer, EmbeddedSettings
async def main():
    server = await EmbeddedServer.start(EmbeddedSettings(folder=Path(sys.argv[1]), guard=sys.argv[2]))
    print(server.describe().pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        if sys.platform == "linux":
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def start_parent(folder: Path, guard: str) -> tuple[subprocess.Popen[str], int]:
    """A process that runs an embedded server, and the pid of that server."""
    argv = [sys.executable, "-c", PARENT, str(folder), guard]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


async def test_it_is_set_up_to_lose_nothing_and_says_what_runs(
    start: Start, call: Call, folder: Path
) -> None:
    server = await start()
    for name, value in [
        ("appendonly", b"yes"),
        ("appendfsync", b"always"),
        ("aof-use-rdb-preamble", b"no"),
        ("save", b""),
        ("port", b"0"),
        ("maxmemory-policy", b"noeviction"),
        ("hash-max-listpack-value", b"1024"),
    ]:
        assert call(server, "CONFIG", "GET", name)[1] == value, name
    what = server.describe()
    assert what.folder == folder
    assert what.socket == folder / "redis.sock"
    assert alive(what.pid)
    assert what.version in (folder / "server.json").read_text()
    assert str(folder) in str(what)
    assert str(what.pid) in str(what)
    assert oct(os.stat(folder).st_mode)[-3:] == "700"
    assert not server.low_disk


async def test_data_outlive_a_stop(start: Start, call: Call) -> None:
    server = await start()
    call(server, "SET", "a", 1)
    pid = server.describe().pid
    await server.stop()
    assert not alive(pid)
    assert not server.socket.exists()
    assert call(await start(), "GET", "a") == b"1"


@pytest.mark.spec("R-EMBED-1")
async def test_a_second_server_on_the_folder_is_refused_at_once(start: Start, folder: Path) -> None:
    first = await start()
    with pytest.raises(FolderInUse, match="in use") as caught:
        await start()
    assert (caught.value.folder, caught.value.holder) == (folder, os.getpid())
    assert str(folder) in str(caught.value)
    assert first.running
    await first.stop()
    await start()


@pytest.mark.spec("R-EMBED-2", "R-EMBED-4")
async def test_kill_9_of_the_server_restarts_it_with_its_data(start: Start, call: Call) -> None:
    server = await start()
    store = await Store.open(StoreSettings(url=server.url))
    call(server, "SET", "a", 1)
    old = server.describe().pid
    os.kill(old, signal.SIGKILL)
    await wait_until(lambda: server.running and server.describe().pid != old)
    assert server.restarts == 1
    assert call(server, "GET", "a") == b"1"
    await wait_until(lambda: store.connected)
    await store.ping()
    assert [partition.gen for partition in store.partitions] == [2, 2]
    await store.close()


async def test_a_server_that_keeps_dying_is_tried_again_until_it_works(start: Start, call: Call) -> None:
    server = await start(backoff_max=0.1)
    call(server, "SET", "a", 1)
    broken = next(server.folder.glob("appendonlydir/*.incr.aof"))
    good = broken.read_bytes()
    broken.write_bytes(b"this is no append-only file" + good)
    os.kill(server.describe().pid, signal.SIGKILL)
    await wait_until(lambda: server.restarts >= 2)
    broken.write_bytes(good)
    await wait_until(lambda: server.running and _answers(call, server))
    assert call(server, "GET", "a") == b"1"


def _answers(call: Call, server: Any) -> bool:
    try:
        return call(server, "PING") == b"PONG"
    except (OSError, hiredis.ReplyError):  # not there, or still loading
        return False


@pytest.mark.spec("R-EMBED-2", "R-EMBED-3")
@pytest.mark.parametrize("guard", ["signal", "pipe"])
async def test_kill_9_of_the_parent_ends_the_server_and_keeps_the_data(
    start: Start, call: Call, folder: Path, guard: str
) -> None:
    if guard == "signal" and sys.platform != "linux":
        pytest.skip("parent-death signals exist on Linux only")
    parent, pid = start_parent(folder, guard)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "redis.sock"))
        client.sendall(b"SET a 1\r\n")
        assert client.recv(10) == b"+OK\r\n"
    parent.kill()
    parent.communicate()
    server = await start()  # waits for the orphan to let go
    assert not alive(pid)
    assert call(server, "GET", "a") == b"1"
    assert server.restarts == 0


async def test_a_server_that_outlived_its_guard_is_asked_to_end(start: Start, call: Call) -> None:
    """kill -9 of the guard leaves the server without anyone to end it."""
    server = await start(guard="pipe", orphan_timeout=1.0)
    call(server, "SET", "a", 1)
    old = server.describe().pid
    assert server._process is not None
    assert server._process.pid != old
    os.kill(server._process.pid, signal.SIGKILL)
    await wait_until(lambda: server.running and server.describe().pid != old)
    assert not alive(old)
    assert call(server, "GET", "a") == b"1"


async def test_a_server_that_will_not_go_is_named(start: Start, folder: Path) -> None:
    server = await start(guard="pipe")
    pid = server.describe().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        os.close(server._folder._held)  # as if the supervisor had died
        server._folder._held = os.open(os.devnull, os.O_RDONLY)
        with pytest.raises(FolderInUse) as caught:
            await start(orphan_timeout=0.2)
        assert caught.value.holder == pid
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_deep_folder_gets_its_socket_elsewhere(start: Start, call: Call, folder: Path) -> None:
    deep = folder / ("d" * 60) / ("é" * 40)
    server = await start(folder=deep)
    assert len(os.fsencode(server.socket)) <= 90
    assert not server.socket.is_relative_to(folder)
    call(server, "SET", "a", 1)
    await server.stop()
    assert not server.socket.parent.exists()
    again = await start(folder=deep)
    assert call(again, "GET", "a") == b"1"
    assert (deep / "appendonlydir").is_dir()


async def test_a_folder_with_spaces_and_quotes_works(start: Start, folder: Path) -> None:
    server = await start(folder=folder / "a b'\"%20")
    store = await Store.open(StoreSettings(url=server.url))
    await store.ping()
    await store.close()


async def test_little_space_left_is_reported(start: Start) -> None:
    server = await start(low_disk=1 << 62, disk_interval=0.01)
    assert server.low_disk


async def test_ctrl_c_does_not_reach_the_server(start: Start) -> None:
    server = await start()
    assert os.getpgid(server.describe().pid) != os.getpgrp()


async def test_a_server_that_cannot_start_shows_its_log(start: Start, folder: Path) -> None:
    (folder / "appendonlydir").mkdir(parents=True)
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(ServerDidNotStart, match="ended with code 1") as caught:
        await start()
    assert "manifest" in caught.value.log.lower()


async def test_a_folder_that_cannot_be_made_is_a_clear_error(start: Start, folder: Path) -> None:
    folder.parent.joinpath("file").write_text("")
    with pytest.raises(EmbeddedError, match="file/data"):
        await start(folder=folder.parent / "file" / "data")


async def test_calls_fail_typed_while_the_server_is_away(start: Start) -> None:
    server = await start(backoff_min=30.0)
    store = await Store.open(StoreSettings(url=server.url, call_timeout=0.2))
    os.kill(server.describe().pid, signal.SIGKILL)
    await wait_until(lambda: not store.connected)
    with pytest.raises(StoreUnavailable):
        await store.ping()
    await store.close()
