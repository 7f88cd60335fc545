"""What the demo reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pawl.demo import analyse, corpus
from pawl.demo.corpus import CorpusError, documents


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_the_standard_library_gives_enough_documents() -> None:
    found = documents()
    assert len(found) >= corpus.ENOUGH
    assert len({one.id for one in found}) == len(found)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", one.id) for one in found)
    assert not any("site-packages" in one.path.parts for one in found)


def test_a_poor_standard_library_is_an_error_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(corpus.TOO_FEW - 1):
        write(tmp_path, f"m{number}.py", '"""A module."""\n')
    write(tmp_path, "silent.py", "import os\n")
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(CorpusError, match=re.escape(f"{tmp_path} has 199 Python files")):
        documents()
    write(tmp_path, "one_more.py", '"""A module."""\n')
    assert len(documents()) == corpus.TOO_FEW


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ('"""Text."""\n', True),
        ("#!/usr/bin/env python\n# comment\n\n'text'\n", True),
        ('r"""raw"""\n', True),
        ('\ufeff"""With a byte order mark."""\n', True),
        ('b"bytes are no docstring"\n', False),
        ("import os\n", False),
        ("", False),
        ("# only a comment\n", False),
    ],
)
def test_a_module_counts_if_it_begins_with_a_docstring(tmp_path: Path, source: str, taken: bool) -> None:
    path = write(tmp_path, "m.py", source)
    assert (corpus.standard_library(tmp_path) == [path]) is taken


def test_tests_of_the_standard_library_only_fill_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.py", '"""A."""\n')
    write(tmp_path, "test/b.py", '"""B."""\n')
    write(tmp_path, "site-packages/c.py", '"""C."""\n')
    assert len(corpus.standard_library(tmp_path)) == 2
    monkeypatch.setattr(corpus, "ENOUGH", 1)
    assert [path.name for path in corpus.standard_library(tmp_path)] == ["a.py"]


def test_a_folder_gives_its_text_files(tmp_path: Path) -> None:
    for number in range(corpus.TOO_FEW_IN_FOLDER):
        write(tmp_path, f"deep/er/{number}.txt", "ein Text mit Umlauten: äöü\n")
    write(tmp_path, "empty.txt", "")
    write(tmp_path, "image.png", b"\x89PNG\0\0")
    write(tmp_path, "latin.txt", "übel".encode("latin-1"))
    write(tmp_path, ".hidden/x.txt", "hidden")
    # A character that is cut in two where the head of the file ends must not make it binary.
    long = write(tmp_path, "long.txt", "x" * (corpus._HEAD_BYTES - 1) + "ü")
    found = documents(tmp_path)
    assert len(found) == corpus.TOO_FEW_IN_FOLDER + 1
    assert long in [one.path for one in found]


def test_a_folder_with_too_little_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=re.escape(f"{tmp_path} has 0 text files")):
        documents(tmp_path)
    with pytest.raises(CorpusError, match="nowhere is not a folder"):
        documents(Path("nowhere"))


def test_a_limit_takes_documents_from_everywhere(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path, f"{number:02}.txt", "text")
    names = [one.path.name for one in documents(tmp_path, 4)]
    assert names == ["00.txt", "05.txt", "10.txt", "15.txt"]


def test_names_that_are_no_ids_become_ids(tmp_path: Path) -> None:
    for number in range(corpus.TOO_FEW_IN_FOLDER):
        write(tmp_path, f"{number} größe {{x}}:{'y' * 150}.txt", "text")
    found = documents(tmp_path)
    assert len({one.id for one in found}) == len(found)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", one.id) for one in found)


def test_a_long_text_is_cut_so_that_it_fits_a_step(tmp_path: Path) -> None:
    read = analyse.read(write(tmp_path, "a.txt", '"\n' * 200_000))
    assert read["cut"]
    assert read["bytes"] == 400_000
    assert len(read["text"]) > 10_000
    assert not analyse.read(write(tmp_path, "b.txt", "short"))["cut"]


def test_what_a_text_holds() -> None:
    source = "def one():\n    class Two: ...\nasync def three(): ...\n# see https://a.example/x), https://a.example/x\n"
    assert analyse.extract(source, python=True)["names"] == ["one", "Two", "three"]
    assert analyse.extract(source, python=True)["targets"] == ["https://a.example/x"]
    page = "# Title\n\nText.\n\nUnder\n=====\n\n## Part\n"
    assert analyse.extract(page, python=False)["names"] == ["Title", "Under", "Part"]
    counts = analyse.count("The ratchet turns. The ratchet never slips back.\n")
    assert (counts["lines"], counts["words"], counts["top"][0]) == (2, 8, "ratchet")
    text = "Nothing of interest stands here. A ratchet turns forward and never slips back."
    assert analyse.summarise(text, ["ratchet", "slips"]).startswith("A ratchet turns")
