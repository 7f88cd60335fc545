"""Fails if a script can answer a word that no test of the last run produced.

`python tools/reply_coverage.py`, after all tests. Compares the @reply lines of the headers with what
tests/support/reply_log.py wrote.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from pawl_server.store.bundle import load_bundles
from tests.support import reply_log


def missing(produced: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the declared pairs that are not in `produced`."""
    headers = [bundle.header for bundle in load_bundles().values()]
    declared = {(header.name, reply.word) for header in headers for reply in header.replies}
    return sorted(declared - produced)


def main() -> int:
    """Returns the exit code."""
    produced = reply_log.read()
    untested = missing(produced)
    for script, word in untested:
        print(f"no test made {script} answer {word}")
    print(f"reply words: {len(produced)} produced by tests, {len(untested)} not")
    return 1 if untested else 0


if __name__ == "__main__":
    sys.exit(main())
