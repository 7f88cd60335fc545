"""`python -m pawl_server`: a server, or several processes of it, with the settings of the environment and of
`pawl.toml`."""

from __future__ import annotations

import sys

from pawl_server.configuration import load
from pawl_server.settings import BadSetting


def main() -> int:
    """Runs it; the exit code."""
    try:
        configuration = load()
    except BadSetting as error:
        print(f"pawl_server: {error}", file=sys.stderr)
        return 2
    if configuration.settings.processes > 1:
        from pawl_server.fleet.parent import supervise  # without gRPC, which the other one loads

        return supervise(configuration.settings, configuration.warn)
    from pawl_server.app import serve

    return serve(configuration.settings, configuration.warn)


if __name__ == "__main__":
    sys.exit(main())
