"""What all tests share. Order, time limits and strictness: pyproject.toml. Fixtures live with their users.

Tests run in parallel and in random order (pytest-randomly prints the seed; `--randomly-seed=N` repeats a
run), so none may count on another, on a port number or on the working folder.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.support.reply_log", "tests.support.topology")

settings.register_profile(
    "pawl", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", parent=settings.get_profile("pawl"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "pawl"))

SLOW_S = 300
"""Time limit of tests marked slow, which start processes or wait for real time."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests hang later than others."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the caller's PAWL_* variables out of the tests."""
    for name in list(os.environ):
        if name.startswith("PAWL_"):
            monkeypatch.delenv(name)
