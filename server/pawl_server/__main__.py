"""`python -m pawl_server`: a server with the settings of the environment and of `pawl.toml`."""

from __future__ import annotations

import sys

from pawl_server.app import serve
from pawl_server.configuration import load
from pawl_server.settings import BadSetting


def main() -> int:
    """Runs it; the exit code."""
    try:
        configuration = load()
    except BadSetting as error:
        print(f"pawl_server: {error}", file=sys.stderr)
        return 2
    return serve(configuration.settings, configuration.warn)


if __name__ == "__main__":
    sys.exit(main())
