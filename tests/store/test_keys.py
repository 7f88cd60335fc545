"""The key catalogue and the tags of partitions: one slot per partition, partitions spread over the slots."""

from __future__ import annotations

import re

import pytest

from pawl_server.store import keys


def slot(key: str) -> int:
    """Returns the slot of a key as a cluster computes it: from what is in the first braces."""
    tag = re.search(r"\{([^}]+)\}", key)
    return keys.crc16((tag[1] if tag else key).encode()) % keys.SLOTS


@pytest.mark.spec("R-STORE-9")
@pytest.mark.parametrize("partitions", [1, 2, 16, 64])
def test_a_partition_has_one_slot_whatever_the_names(partitions: int) -> None:
    for at in range(partitions):
        tag = keys.partition_tag("default", at, partitions)
        names = [spec.pattern for spec in keys.KEYS.values()]
        assert {slot(tag + name) for name in names} == {slot(tag)}


@pytest.mark.parametrize("partitions", [2, 16, 64, 256])
def test_partitions_spread_evenly(partitions: int) -> None:
    share = keys.SLOTS / partitions
    slots = [slot(keys.partition_tag("default", at, partitions)) for at in range(partitions)]
    assert [int(each // share) for each in slots] == list(range(partitions))


def test_instances_spread_over_partitions() -> None:
    counts = [0] * 16
    for number in range(16_000):
        counts[keys.partition_of(f"order-{number}", 16)] += 1
    assert min(counts) > 800
    assert max(counts) < 1_200
