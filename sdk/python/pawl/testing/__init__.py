"""For tests of workflows: the real server on a private embedded store, and handlers run without any server.

```python
async def test_counter():
    async with testing.server() as server, server.worker(counter):
        sent = await server.client.send("c-1", {"add": 2}, create=counter, wait=10)
        assert sent.result() == 2


async def test_handler():
    ran = await testing.run(counter, state={"count": 1}, message={"add": 2})
    assert ran.result == 2
```

`server` needs the extra `[server]`; `run` does not.
"""

from __future__ import annotations

from pawl.testing._entries import SLEPT, TIMED_OUT
from pawl.testing._replays import NonDeterminism
from pawl.testing._reports import Heartbeat, ProgressReport
from pawl.testing.running import Advanced, Clock, Server, server
from pawl.testing.turns import Deferral, Ran, Sleep, UnusedNames, Wait, run, run_sync

__all__ = [
    "SLEPT",
    "TIMED_OUT",
    "Advanced",
    "Clock",
    "Deferral",
    "Heartbeat",
    "NonDeterminism",
    "ProgressReport",
    "Ran",
    "Server",
    "Sleep",
    "UnusedNames",
    "Wait",
    "run",
    "run_sync",
    "server",
]
