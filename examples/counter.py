"""A counter: state that survives everything, and a turn that continues itself.

```sh
pawl dev
pawl worker examples.counter:counter
pawl send clicks '{"add": 2}' --type counter --version v1 --state '{"count": 0}' --wait 10
```
"""

from __future__ import annotations

from typing import Any

from pawl import Context, Outcome, workflow


@workflow("counter", version="v1", initial_state={"count": 0})
async def counter(ctx: Context, state: dict[str, Any], message: dict[str, Any]) -> Outcome:
    """Adds `add` to the count, `remaining` times, each time in a turn of its own."""
    amount = await ctx.step("add", lambda: message["add"])
    state = {"count": state["count"] + amount}
    if message.get("remaining", 1) > 1:
        return ctx.continue_with(state, {**message, "remaining": message["remaining"] - 1})
    return ctx.done(state, result=state["count"])
