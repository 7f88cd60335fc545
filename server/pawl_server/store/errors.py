"""What can go wrong between the server and Redis.

StoreError
├── StoreUnavailable     no usable answer from Redis in time; the call may or may not have been applied
├── StoreMoving          the partition's slot is moving to another node; nothing was written
├── StoreMemory          Redis is out of memory and refused the call; nothing was written
├── ScriptFailed         a script ended with an error reply: a bug, or a Redis that lacks something
└── StoreRefused         this Redis cannot be used as it is set up; names the setting to change

Everything that is part of normal work (a stale fence, a gap, a conflict) is a reply word, not an error.
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of all errors of the store."""


class StoreUnavailable(StoreError):
    """Redis gave no usable answer within the call's deadline.

    `maybe_applied` is False where Redis is known not to have run the call: it was never sent, or Redis
    answered that it refuses to run it. Repeating the call is safe in both cases: receipts answer a repeat.
    """

    def __init__(self, why: str, *, maybe_applied: bool = True) -> None:
        super().__init__(why)
        self.why = why
        self.maybe_applied = maybe_applied


class StoreMoving(StoreError):
    """The slot of the partition is moving between nodes of a cluster. Nothing was written; repeat later."""


class StoreDamaged(StoreError):
    """What is stored of an instance can't be read. Nothing was written; other instances are not affected."""


class StoreMemory(StoreError):
    """Redis has reached maxmemory and refused the call. Nothing was written."""


class StoreDeleting(StoreError):
    """The instance is being deleted in the background. Nothing was written."""


class ScriptFailed(StoreError):
    """A script ended with an error reply.

    `script` is its name, `message` Redis' text. Scripts report every expected outcome as a reply word, so
    this is a bug of the script or a server that misses a command.
    """

    def __init__(self, script: str, message: str) -> None:
        super().__init__(f"{script}: {message}")
        self.script = script
        self.message = message


class StoreRefused(StoreError):
    """This Redis cannot be used as it is set up.

    `setting` is the name of what to change (a Redis setting, or one of Pawl's), `why` says what is wrong and
    how to change it. Raised at start; never for a call.
    """

    def __init__(self, setting: str, why: str) -> None:
        super().__init__(f"{setting}: {why}")
        self.setting = setting
        self.why = why
