"""Workflows for the worker of the command-line tests."""

from __future__ import annotations

from typing import Any

from pawl import Context, Defer, Outcome, WorkflowError, workflow


@workflow("failing", version="v1")
async def failing(ctx: Context, state: Any, message: Any) -> Outcome:
    """Fails, always."""
    raise WorkflowError("it is broken", reason="BROKEN")


@workflow("full", version="v1")
async def full(ctx: Context, state: Any, message: Any) -> Outcome:
    """Is put off, always."""
    raise Defer(3_600, reason="capacity")


@workflow("tuned", version="v1", lease_timeout=90)
async def tuned(ctx: Context, state: Any, message: Any) -> Outcome:
    """Has settings that its worker stores."""
    return ctx.done(state)
