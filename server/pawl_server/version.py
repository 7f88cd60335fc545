"""The version of this build."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _read() -> str:
    try:
        return version("pawl-workflows")
    except PackageNotFoundError:  # running from a source tree that was never installed
        return "0+unknown"


VERSION = _read()
"""Version of the distribution, for example "0.1.0"."""
