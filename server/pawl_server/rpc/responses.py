"""Calls that answer with a stream of responses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

from pawl_server.domain.errors import Reason, Refused
from pawl_server.log_lines import WATCHER_GONE
from pawl_server.rpc.call import Context, Gate
from pawl_server.rpc.status import abort

log = logging.getLogger(__name__)

_CANCELLED_S = 5.0
"""Longest time until gRPC has noticed."""


class _Gone(Exception):
    """The stream of a caller has ended."""


async def respond(
    gate: Gate,
    request: Any,
    context: Context,
    begin: Callable[[], AsyncGenerator[Any, None]],
    where: str,
    stall: float,
) -> None:
    """Sends responses until there are no more; whatever goes wrong becomes a status with a reason.

    `begin` checks the request and gives the responses; a caller that reads none for `stall` seconds is
    OVERLOADED.
    """
    context.set_trailing_metadata(gate.metadata)
    with gate.stream(where, context):
        try:
            gate.check(sheds=False, while_draining=False)
            if isinstance(request, Refused):
                raise request
            async with contextlib.aclosing(begin()) as responses:
                async for response in responses:
                    await _write(context, response, stall)
        except _Gone as gone:
            # gRPC cancels the handler of such a stream; a return would try to send a status.
            WATCHER_GONE(log, method=where, why=str(gone) or type(gone).__name__)
            await asyncio.sleep(_CANCELLED_S)
        except Exception as error:
            await abort(context, error, where)


async def _write(context: Context, response: Any, stall: float) -> None:
    try:
        async with asyncio.timeout(stall):
            await context.write(response)
    except TimeoutError:
        raise Refused(Reason.OVERLOADED, f"nothing was read for {stall:g} s") from None
    except Exception as error:
        raise _Gone(str(error)) from None
