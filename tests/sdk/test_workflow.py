"""Declaring workflows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import pawl
from pawl import Worker, workflow
from pawl.payloads import decode, encode


def handler(ctx: Any, state: Any, message: Any) -> Any:
    return ctx, state, message


@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "ä", "a:b", "{a}", "a\n"])
def test_names_and_versions_are_checked(bad: str) -> None:
    with pytest.raises(ValueError, match="workflow name"):
        workflow(bad, version="v1")
    with pytest.raises(ValueError, match="version"):
        workflow("a", version=bad)


def test_the_prefix_of_the_service_is_reserved() -> None:
    with pytest.raises(ValueError, match="reserved"):
        workflow("pawl.timer", version="v1")


@pytest.mark.parametrize("settings", [{"lease_timeout": 0.5}, {"lease_timeout": 3601}, {"max_attempts": 0}])
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        workflow("a", version="v1", **settings)


def test_what_is_declared() -> None:
    made = workflow("a", version="v1", initial_state={"n": 0}, lease_timeout=10, max_attempts=5)(handler)
    assert (made.name, made.version, made.is_async, made.max_attempts) == ("a", "v1", False, 5)
    assert made.lease_timeout == timedelta(seconds=10)
    assert decode(made.initial_state) == {"n": 0}
    assert made(1, 2, 3) == (1, 2, 3)


def test_handlers_take_three_arguments() -> None:
    for bad in (lambda ctx, state: None, lambda: None, lambda a, b, c, d: None):
        with pytest.raises(TypeError, match="ctx, state, message"):
            workflow("a", version="v1")(bad)


def test_annotations_of_local_classes_are_found() -> None:
    @dataclass
    class Local:
        n: int

    @workflow("a", version="v1")
    async def made(ctx: pawl.Context, state: Local, message: list[Local]) -> Any: ...

    assert made.decode_state(encode({"n": 1})) == Local(1)
    assert made.decode_message(encode([{"n": 1}])) == [Local(1)]


def test_annotations_that_do_not_exist_are_named() -> None:
    async def bad(ctx: Any, state: Missing, message: Any) -> Any: ...  # noqa: F821 # pyright: ignore

    with pytest.raises(TypeError, match="Missing"):
        workflow("a", version="v1")(bad)


def test_a_worker_checks_what_it_is_given() -> None:
    one = workflow("a", version="v1")(handler)
    with pytest.raises(ValueError, match="at least one"):
        Worker(workflows=[])
    with pytest.raises(ValueError, match="same name"):
        Worker(workflows=[one, one])
    for concurrency in (0, 10_001):
        with pytest.raises(ValueError, match="concurrency"):
            Worker(workflows=[one], concurrency=concurrency)
    with pytest.raises(ValueError, match="session"):
        Worker(workflows=[one], session="a b")
