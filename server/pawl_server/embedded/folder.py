"""The data folder: who holds it, what is in it, where the socket is.

Two locks tell a second starter what to do. `lock` is held by the supervisor and means: in use, go away.
`server.lock` is held by the server process (the descriptor is inherited) and means, when only it is taken: a
server outlived its supervisor and is on its way out, wait. Both vanish with their holders, however those end;
pids are never trusted.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from pawl_server.embedded.errors import EmbeddedError, FolderInUse, WrongTime

LONGEST_SOCKET_PATH = 90
"""Bytes of a socket's path that every system accepts (Linux takes 107, macOS 103)."""

LARGEST_LOG = 4 << 20
"""Bytes from which the log is put aside at the next start; one older log is kept."""

_TEMPORARY = "pawl-"


class Folder:
    """A data folder held by this process, from construction to `close`.

    Raises FolderInUse if another process holds it, EmbeddedError if it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.log = self.path / "server.log"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EmbeddedError(f"the data folder {self.path} cannot be used: {error}") from None
        if not _lock(self._held):
            holder = _holder(self._held)
            os.close(self._held)
            raise FolderInUse(self.path, holder)
        os.truncate(self._held, 0)
        os.pwrite(self._held, f"{os.getpid()}\n".encode(), 0)
        self.socket = self._place_socket()
        ignore = self.path / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")

    def _place_socket(self) -> Path:
        """In the folder, or in a temporary directory where that path would be too long."""
        path = self.path / "redis.sock"
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            return path
        return Path(tempfile.mkdtemp(prefix=_TEMPORARY)) / "redis.sock"

    @property
    def former_socket(self) -> str:
        """Where the last server of this folder listened; '' if there was none."""
        return str(self.read_note().get("socket", ""))

    def keep_time(self, *, virtual: bool) -> None:
        """Fixes what kind of time the data have, with the first server that uses the folder.

        Raises WrongTime if they have the other kind.
        """
        mark = self.path / "virtual-time"
        if self.read_note() and mark.exists() != virtual:
            raise WrongTime(self.path, virtual=not virtual)
        if virtual:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def lock_for_server(self) -> int | None:
        """A locked descriptor for the server to inherit, or None while a former server is still there."""
        lock = os.open(self.path / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _lock(lock):
            if self.former_socket != str(self.socket):
                _forget_temporary(self.former_socket)
            return lock
        os.close(lock)
        return None

    def open_log(self) -> int:
        """A descriptor that appends to the server's log."""
        if self.log.exists() and self.log.stat().st_size > LARGEST_LOG:
            self.log.replace(self.log.with_suffix(".log.1"))
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def log_tail(self, size: int = 2000) -> str:
        """The last `size` bytes of the log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - size))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def write_note(self, note: dict[str, Any]) -> None:
        """Writes down which server uses the folder."""
        temporary = self.path / "server.json.new"
        temporary.write_text(json.dumps(note, indent=1) + "\n")
        temporary.replace(self.path / "server.json")

    def read_note(self) -> dict[str, Any]:
        """What `write_note` wrote last; empty if nothing can be read."""
        try:
            note = json.loads((self.path / "server.json").read_text())
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def free_bytes(self) -> int:
        """Space left for this user on the folder's disk."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def close(self) -> None:
        """Gives the folder back. The server must have ended. May be called twice."""
        if self._held >= 0:
            self.socket.unlink(missing_ok=True)
            _forget_temporary(str(self.socket))
            os.close(self._held)
            self._held = -1


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> int:
    """The pid that the holder wrote; it may need a moment to do so."""
    for _ in range(20):
        text = os.pread(descriptor, 20, 0).strip()
        if text.isdigit():
            return int(text)
        time.sleep(0.005)
    return 0


def _forget_temporary(socket: str) -> None:
    """Removes the temporary directory of a socket, if it is in one of ours."""
    place = Path(socket).parent
    if socket and place.name.startswith(_TEMPORARY) and place.parent == Path(tempfile.gettempdir()):
        shutil.rmtree(place, ignore_errors=True)
