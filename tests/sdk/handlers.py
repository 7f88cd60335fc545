"""Running single handlers without a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pawl
from pawl import testing, workflow


@dataclass
class Point:
    x: int
    y: int = 0


def declare(handler: Any) -> pawl.Workflow:
    return workflow("test", version="v1", initial_state={})(handler)


async def run(handler: Any, message: Any = None, **options: Any) -> testing.Ran:
    return await testing.run(declare(handler), message, **options)


async def failure(handler: Any, **options: Any) -> pawl.Failure:
    ran = await run(handler, **options)
    assert ran.failure is not None
    return ran.failure
