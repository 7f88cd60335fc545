"""The files in which steps write what they did."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pawl.demo import marks
from pawl.demo.marks import MarkFile, MarkReader


async def test_marks_are_read_as_they_are_written(tmp_path: Path) -> None:
    one, two = MarkFile(tmp_path, "a"), MarkFile(tmp_path, "b")
    reader = MarkReader(tmp_path)
    assert reader.poll() == []
    await one.write("S", "e1", "read", "doc-1", 1, 7)
    await two.write("R", "-", "read", "doc-2", 2, 9)
    first = reader.poll()
    assert [(mark.kind, mark.effect_id, mark.worker) for mark in first] == [("S", "e1", "a"), ("R", "-", "b")]
    assert (first[0].step, first[0].instance_id, first[0].attempt, first[0].fence) == ("read", "doc-1", 1, 7)
    await one.write("E", "e1", "read", "doc-1", 1, 7)
    assert [mark.kind for mark in reader.poll()] == ["E"]
    assert len(reader.marks) == 3
    one.close()
    two.close()


async def test_writers_at_the_same_time_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0
    sync = marks.os.fsync

    def counted(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        sync(fd)

    monkeypatch.setattr(marks.os, "fsync", counted)
    file = MarkFile(tmp_path, "a")
    await asyncio.gather(*(file.write("E", f"e{n}", "read", "doc", 1, 1) for n in range(100)))
    assert 1 <= syncs <= 2
    assert len(MarkReader(tmp_path).poll()) == 100
    file.close()


async def test_a_cancelled_writer_leaves_its_mark_and_harms_no_other(tmp_path: Path) -> None:
    file = MarkFile(tmp_path, "a")
    first = asyncio.create_task(file.write("S", "e1", "read", "doc", 1, 1))
    second = asyncio.create_task(file.write("S", "e2", "read", "doc", 1, 1))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert len(MarkReader(tmp_path).poll()) == 2
    file.close()


def test_a_line_that_a_kill_cut_off_is_not_read(tmp_path: Path) -> None:
    path = marks.file_of(tmp_path, "a")
    path.write_text("S e1 read doc 1 1 5\nE e1 re")
    reader = MarkReader(tmp_path)
    assert [mark.kind for mark in reader.poll()] == ["S"]
    with path.open("a") as file:
        file.write("ad doc 1 1 6\n")
    assert [mark.kind for mark in reader.poll()] == ["E"]
