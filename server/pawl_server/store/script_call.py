"""What a script is, and what its raw reply means.

Every script answers `{ now_ms, replies, ready }`: the engine's time, one reply array `{WORD, field…}` per
item, and the `type:version` strings that became ready. An item whose instance can't be read answers
`{'DAMAGED'}`, one that is being deleted `{'DELETING'}`; other items notice nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pawl_server.store.errors import ScriptFailed, StoreDamaged, StoreDeleting, StoreError

R = TypeVar("R")

Arg = bytes | str | int
"""One ARGV value. Integers travel as decimal digits, text as UTF-8."""

URGENT, CLAIM, ADMISSION = 0, 1, 2
"""Order of scripts inside one flush: what ends or keeps a lease, then claims, then what brings new work."""


@dataclass(frozen=True, slots=True, eq=False)
class Script(Generic[R]):
    """One Lua script as the store calls it: `EVALSHA sha 1 <tag>meta argv…`.

    `name` labels errors and metrics. `text` is the bundle with its shebang line, `sha` its SHA-1 in hex.
    `priority` (0 first, 2 last) orders the calls of one flush. `oom` says what happens at maxmemory: `deny`
    is refused, `allow` runs, `reads` never writes. `bulk` scripts use the bulk lane, where large replies
    delay no transition.
    """

    name: str
    text: str
    sha: str
    priority: int = ADMISSION
    oom: Literal["deny", "allow", "reads"] = "deny"
    bulk: bool = False

    @staticmethod
    def sha_of(text: str) -> str:
        """The name under which Redis caches `text`."""
        return sha1(text.encode(), usedforsecurity=False).hexdigest()


class Result(NamedTuple, Generic[R]):
    """Decoded answer of a script.

    `now_ms` is the engine's time of the partition in ms, `replies` has one reply per item, `ready` the
    `type:version` keys that became ready to be claimed.
    """

    now_ms: int
    replies: list[R]
    """In a list of several items, one whose instance is damaged has a StoreDamaged in place of its reply."""
    ready: list[str]


def decode_result(
    script: str, raw: Sequence[Any], words: Mapping[bytes, Callable[[Sequence[Any]], R]]
) -> Result[R]:
    """Turns a raw answer into a `Result`; `words` maps each reply word to the maker of its tuple.

    A maker receives the whole reply array, the word included. Raises StoreDamaged if the only item is of a
    damaged instance, StoreDeleting if it is being deleted, ScriptFailed for a word the caller does not know.
    """
    now_ms, replies, ready = raw
    try:
        decoded = [words[reply[0]](reply) for reply in replies]
    except KeyError as unknown:
        if unknown.args[0] in _ABSENT:
            return _with_absent(script, raw, words)
        raise ScriptFailed(script, f"unknown reply word {unknown.args[0]!r}") from None
    return Result(now_ms, decoded, [entry.decode() for entry in ready])


def _with_absent(
    script: str, raw: Sequence[Any], words: Mapping[bytes, Callable[[Sequence[Any]], R]]
) -> Result[R]:
    now_ms, replies, ready = raw
    if len(replies) == 1:
        raise _absent(script, replies[0][0])
    sound = iter(
        decode_result(script, (now_ms, [r for r in replies if r[0] not in _ABSENT], ready), words).replies
    )
    decoded: list[Any] = [
        _absent(script, reply[0]) if reply[0] in _ABSENT else next(sound) for reply in replies
    ]
    return Result(now_ms, decoded, [entry.decode() for entry in ready])


_ABSENT = {
    b"DAMAGED": (StoreDamaged, "what is stored of the instance can't be read"),
    b"DELETING": (StoreDeleting, "the instance is being deleted"),
}


def _absent(script: str, word: bytes) -> StoreError:
    kind, text = _ABSENT[word]
    return kind(f"{script}: {text}")
