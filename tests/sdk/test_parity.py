"""Both clients have the same calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import pawl
import pawl.client
import pawl.sync

ENTERING = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
PAIRS = [(pawl.Client, pawl.sync.Client), (pawl.InstanceHandle, pawl.sync.InstanceHandle)]


def surface(kind: type) -> dict[str, Callable[..., Any]]:
    """The functions that a class and its bases define for users, by name."""
    found = {name: value for base in reversed(kind.__mro__[:-1]) for name, value in vars(base).items()}
    return {
        ENTERING.get(name, name): value
        for name, value in found.items()
        if inspect.isfunction(value)
        and (not name.startswith("_") or name in (*ENTERING, *ENTERING.values(), "__init__"))
    }


@pytest.mark.spec("R-SDK-15")
@pytest.mark.parametrize(("aio", "sync"), PAIRS)
def test_both_have_the_same_calls(aio: type, sync: type) -> None:
    asynchronous, blocking = surface(aio), surface(sync)
    assert list(blocking) == list(asynchronous)
    assert len(asynchronous) > 5
    for name, call in asynchronous.items():
        assert signature(call) == signature(blocking[name]), name
        assert call.__doc__ == blocking[name].__doc__ or name in ("close", "__init__"), name
        assert not inspect.iscoroutinefunction(blocking[name])
        assert not inspect.isasyncgenfunction(blocking[name])


def test_both_modules_offer_the_same() -> None:
    assert pawl.sync.__all__ == pawl.client.__all__


def signature(call: Callable[..., Any]) -> str:
    """Parameters, defaults, annotations and what a call gives in the end."""
    return str(inspect.signature(call)).replace("AsyncIterator[", "Iterator[")
