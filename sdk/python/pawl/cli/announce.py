"""`python -m pawl.cli.announce`: speaks for the parent of several server processes, which knows no gRPC.

Its argument is a JSON object: `as_json`, `folder`, `processes`, and either `pid` and `ready` or `refusal`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pawl.cli.exits import CommandError, Exit, end
from pawl.cli.serve import Serving, announce


def main() -> None:
    """Says it."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    if "refusal" in told:
        refusal = told["refusal"]
        error = CommandError(refusal["reason"], refusal["text"], Exit(refusal["code"]))
        end(error, as_json=told["as_json"])
    ready = told["ready"]
    serving = Serving(
        address=ready["address"],
        folder=told["folder"],
        metrics=ready["metrics"] or None,
        risk=ready["risk"],
        pid=told["pid"],
        processes=told["processes"],
    )
    asyncio.run(announce(serving, as_json=told["as_json"]))


if __name__ == "__main__":
    main()
