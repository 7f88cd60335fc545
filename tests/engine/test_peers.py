"""Which servers there are, and their order in each partition."""

from __future__ import annotations

import pytest

from pawl_server.engine.peers import Peer, Peers

PARTITIONS = 64


def alive(*runs: str) -> list[bytes]:
    """What a beat says: runs and addresses."""
    return [part for run in runs for part in (run.encode(), f"{run}:1".encode())]


def peers_of(*runs: str) -> list[Peers]:
    """The view of each server once all have seen all."""
    views = [Peers(run, PARTITIONS) for run in runs]
    for view in views:
        view.address = f"{view.run}:1"
        for partition in range(PARTITIONS):
            view.seen(partition, alive(*(run for run in runs if run != view.run)))
    return views


@pytest.mark.spec("R-SERVER-3")
def test_every_partition_has_an_order_and_all_servers_come_first_somewhere() -> None:
    views = peers_of("one", "two", "three", "four")
    firsts = set()
    for partition in range(PARTITIONS):
        ranks = [view.rank(partition) for view in views]
        assert sorted(ranks) == [0, 1, 2, 3]
        firsts.add(ranks.index(0))
    assert firsts == {0, 1, 2, 3}


@pytest.mark.spec("R-SERVER-3")
def test_a_server_that_goes_changes_no_order_but_its_own_place() -> None:
    before = peers_of("one", "two", "three")
    after = peers_of("one", "two")
    for partition in range(PARTITIONS):
        one, two, three = [view.rank(partition) for view in before]
        assert [view.rank(partition) for view in after] == [one - (three < one), two - (three < two)]


def test_a_server_alone_is_the_first_everywhere() -> None:
    alone = Peers("one", 2)
    assert [alone.rank(partition) for partition in (0, 1)] == [0, 0]
    assert alone.servers == ()


@pytest.mark.spec("R-SERVER-2")
def test_servers_are_those_that_all_partitions_know() -> None:
    changes = []
    peers = Peers("one", 2)
    peers.on_change = lambda: changes.append(peers.servers)
    peers.address = "one:1"
    peers.seen(0, alive("two"))
    assert peers.servers == (Peer("one", "one:1"),)
    peers.seen(1, alive("two", "three"))
    assert peers.servers == (Peer("one", "one:1"), Peer("two", "two:1"))
    peers.seen(1, alive("two", "three"))
    peers.seen(0, alive("two", "three"))
    peers.seen(0, alive("three"))
    assert peers.servers == (Peer("one", "one:1"), Peer("three", "three:1"))
    peers.leaving = True
    peers.refresh()
    assert [[run for run, _ in servers] for servers in changes] == [
        ["one"], ["one", "two"], ["one", "three", "two"], ["one", "three"], ["three"],
    ]  # fmt: skip


@pytest.mark.spec("R-SERVER-2")
def test_a_server_without_an_address_is_nobody_to_connect_to() -> None:
    peers = Peers("one", 1)
    peers.address = "one:1"
    peers.seen(0, [b"two", b""])
    assert [run for run, _ in peers.servers] == ["one"]
    one = peers.rank(0)
    other = Peers("two", 1)
    other.seen(0, alive("one"))
    assert {one, other.rank(0)} == {0, 1}, "it has its place in the order all the same"
