"""Exit codes, and how an error becomes one line on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import NoReturn

import click

from pawl.errors import (
    DeadlineExceeded,
    NotFound,
    Overloaded,
    PawlError,
    PayloadError,
    ServerError,
    TurnFailed,
    TurnUnfinished,
    Unavailable,
)


class Exit(IntEnum):
    """Exit codes of every command. They never change their meaning."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    NOT_FOUND = 4
    UNFINISHED = 5
    INTERRUPTED = 130


MEANINGS: Mapping[Exit, str] = {
    Exit.OK: "done; for `dev`, `server` and `worker`: stopped in good order by SIGINT or SIGTERM",
    Exit.FAILED: "refused or failed; the line on stderr begins with the reason, such as `BODY_CONFLICT`",
    Exit.USAGE: "the command line is wrong, or the command needs a part of Pawl that is not installed",
    Exit.UNAVAILABLE: "no server answers, it is overloaded or stopping, or its store is away; repeat later",
    Exit.NOT_FOUND: "no such instance or turn, or its history was trimmed",
    Exit.UNFINISHED: "`send --wait` sent the message, and its turn is not finished yet",
    Exit.INTERRUPTED: "interrupted before the end",
}
"""What each code means; the source of docs/reference/cli.md."""


class CommandError(click.ClickException):
    """Ends a command with a reason, a text and an exit code."""

    def __init__(
        self, reason: str, message: str, code: Exit = Exit.FAILED, details: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.exit_code = int(code)  # pyright: ignore[reportAttributeAccessIssue] - click sets it so, too
        self.details = dict(details or {})


def command_error(error: PawlError, address: str = "") -> CommandError:
    """Says as the end of a command what the library raised."""
    if isinstance(error, ServerError):
        late = isinstance(error, DeadlineExceeded)
        reason = "DEADLINE" if late else error.reason or error.code
        if isinstance(error, Unavailable | Overloaded | DeadlineExceeded):
            return CommandError(reason, _unavailable(error, address), Exit.UNAVAILABLE, error.metadata)
        code = Exit.NOT_FOUND if isinstance(error, NotFound) else Exit.FAILED
        return CommandError(reason, error.message, code, error.metadata)
    if isinstance(error, TurnUnfinished):
        return CommandError("UNFINISHED", str(error), Exit.UNFINISHED, {"state": error.state})
    if isinstance(error, TurnFailed):
        return CommandError("TURN_FAILED", str(error), details={"state": error.state, "cause": error.reason})
    if isinstance(error, PayloadError):
        return CommandError("PAYLOAD", str(error))
    return CommandError("FAILED", str(error))


def _unavailable(error: ServerError, address: str) -> str:
    """Says whether there is no server, one that does not answer, or what it answered."""
    if isinstance(error, DeadlineExceeded):
        return f"the server at {address} has not answered in time" if address else error.message
    if error.reason or not address:
        return error.message
    why = error.message.rsplit(": ", 1)[-1].rstrip("])")  # the last link of gRPC's chain of causes
    if any(word in error.message for word in _NOT_CONNECTED):
        return f"no server answers at {address} ({why}); 'pawl dev' starts one"
    return f"the connection to {address} broke ({why})"


_NOT_CONNECTED = ("failed to connect", "errors resolving", "DNS resolution failed")
"""Parts of gRPC's texts for a connection that never was."""


def end(error: click.ClickException, *, as_json: bool) -> NoReturn:
    """Writes the error to stderr, as one line or one JSON object, and ends the process with its code."""
    if isinstance(error, CommandError):
        reason, text, details = error.reason, error.message, error.details
    else:
        reason, text, details = "USAGE", error.format_message(), {}
        if isinstance(error, click.UsageError) and error.ctx is not None and error.ctx.command_path:
            text = f"{text.rstrip('.')} (see '{error.ctx.command_path} --help')"
    text = " ".join(text.split())
    if as_json:
        body = {"reason": reason, "message": text, "exit_code": int(error.exit_code), "metadata": details}
        line = json.dumps({"error": body}, ensure_ascii=False)
    else:
        line = f"error: {reason}: {text}"
    click.echo(line, err=True)
    sys.exit(int(error.exit_code))
