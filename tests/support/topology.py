"""Which kind of Redis the tests run on. A pytest plugin.

By default tests run on single servers. With PAWL_TEST_CLUSTER=1 every server of theirs is a cluster of one
node: all slots are there, and Redis refuses each script that touches a second one. Tests marked `standalone`
do what a cluster does not do or does in another way; they are left out then.
"""

from __future__ import annotations

import os

import pytest

CLUSTER = os.environ.get("PAWL_TEST_CLUSTER", "") not in ("", "0")
"""Whether servers are clusters of one node, unless a test says otherwise."""

PARTITIONS = 2 if CLUSTER else None
"""Partitions of namespaces that tests make: always two, whatever the topology's default."""


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", "standalone: left out with PAWL_TEST_CLUSTER=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what this topology can't run."""
    if CLUSTER:
        for item in items:
            if item.get_closest_marker("standalone"):
                item.add_marker(pytest.mark.skip(reason="standalone: the servers are clusters"))
