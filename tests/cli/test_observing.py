"""What a server started by the command line lets an operator see."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Child


@pytest.mark.spec("R-METRIC-1", "R-SETTING-1", "R-LOG-1")
def test_metrics_and_log_of_a_server(start: Callable[..., Child], tmp_path: Path) -> None:
    (tmp_path / "pawl.toml").write_text("port = 0\nmetrics_types = 5\n[limits]\nsteps_per_turn = 7\n")
    env = {"PAWL_PROT": "1", "PAWL_LOG_LEVEL": "info", "PAWL_ADDRESS": "127.0.0.1:1"}
    server = start("dev", "--metrics", "127.0.0.1:0", cwd=tmp_path, env=env)
    assert server.facts["limits"]["steps_per_turn"] == 7
    with urllib.request.urlopen(server.facts["metrics"], timeout=20) as answer:
        page = answer.read().decode()
    assert "pawl_ready 1.0\n" in page
    assert 'pawl_durability_info{assumed="false",level="fsync"} 1.0\n' in page
    assert server.end() == 0
    lines = [json.loads(line) for line in (tmp_path / "stderr.txt").read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert [line["names"] for line in lines if line["event"] == "settings_unknown"] == ["PAWL_PROT"]
    assert (
        events.index("metrics_listening") < events.index("server_stopping") < events.index("server_stopped")
    )


def test_metrics_are_off_by_default(start: Callable[..., Child], tmp_path: Path) -> None:
    server = start("dev", "--port", "0", cwd=tmp_path)
    assert server.facts["metrics"] is None
    assert server.end() == 0
