"""Settings: what file, environment and options may say, and which of them wins."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pawl_server.configuration import Origin, load
from pawl_server.domain.limits import Limits
from pawl_server.settings import BadSetting, Settings, limit_variable, variable

NOWHERE = Path(__file__).parent
"""A folder without a pawl.toml."""


def from_env(env: Mapping[str, str], options: Mapping[str, Any] | None = None) -> Settings:
    """Settings of an environment and options, without a file."""
    return load(options, env=env, folder=NOWHERE).settings


def test_defaults() -> None:
    settings = from_env({})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.redis_url) == ("127.0.0.1", 7295, None)
    assert settings.data_dir == Path(".pawl")
    assert settings.limits == Limits()


def test_every_field_has_a_variable_and_options_win() -> None:
    env = {
        "PAWL_HOST": "::1",
        "PAWL_PORT": "0",
        "PAWL_PROCESSES": "2",
        "PAWL_ADVERTISE_HOST": "pawl.example",
        "PAWL_INSECURE": "yes",
        "PAWL_REDIS_URL": "rediss://user:secret@redis.example:6380/2",
        "PAWL_DATA_DIR": "/var/lib/pawl",
        "PAWL_NAMESPACE": "shop.eu",
        "PAWL_PARTITIONS": "64",
        "PAWL_DURABILITY_ASSUME": "everysec",
        "PAWL_SERVER_NAME": "one",
        "PAWL_BEAT_INTERVAL_MS": "500",
        "PAWL_POLL_INTERVAL_MS": "300",
        "PAWL_DELIVERY_TIMEOUT_MS": "4000",
        "PAWL_STREAM_MAX_AGE_MS": "0",
        "PAWL_SWEEP_BUDGET": "10",
        "PAWL_MAX_CALLS_IN_FLIGHT": "99",
        "PAWL_STORE_TIMEOUT_MS": "700",
        "PAWL_START_TIMEOUT_MS": "800",
        "PAWL_STOP_GRACE_MS": "900",
        "PAWL_LOG_LEVEL": "debug",
        "PAWL_LOG_FORMAT": "json",
        "PAWL_METRICS_ADDRESS": "0.0.0.0:0",
        "PAWL_METRICS_TYPES": "7",
        "PAWL_LIMIT_STEPS_PER_TURN": "200",
    }
    settings = from_env(env)
    default = Settings()
    for field in dataclasses.fields(Settings):
        if field.name == "virtual_time":  # needs a single process
            assert from_env({"PAWL_VIRTUAL_TIME": "1"}).virtual_time
            continue
        assert getattr(settings, field.name) != getattr(default, field.name), field.name
        assert field.name == "limits" or variable(field.name) in env
    assert (settings.partitions, settings.insecure) == (64, True)
    assert settings.data_dir == Path("/var/lib/pawl")
    assert settings.limits == Limits(steps_per_turn=200)
    overridden = from_env(env, {"port": 9, "host": None, "data_dir": Path("x")})
    assert (overridden.port, overridden.host, overridden.data_dir) == (9, "::1", Path("x"))


def test_every_variable_is_documented() -> None:
    source = Path(__file__).parents[2] / "server/pawl_server/settings.py"
    lines = source.read_text().splitlines()
    for field in dataclasses.fields(Settings):
        (at,) = [n for n, line in enumerate(lines) if line.startswith(f"    {field.name}: ")]
        assert lines[at + 1].startswith('    """'), field.name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PAWL_PORT", "x"),
        ("PAWL_PORT", ""),
        ("PAWL_PORT", "65536"),
        ("PAWL_PORT", "-1"),
        ("PAWL_INSECURE", "maybe"),
        ("PAWL_HOST", "0.0.0.0"),
        ("PAWL_HOST", "pawl.example"),
        ("PAWL_HOST", "unix:"),
        ("PAWL_HOST", "unix:/" + "x" * 100),
        ("PAWL_REDIS_URL", "http://x"),
        ("PAWL_REDIS_URL", "redis://"),
        ("PAWL_REDIS_URL", "unix://"),
        ("PAWL_REDIS_URL", "redis://h:port"),
        ("PAWL_REDIS_URL", "redis://h:1,h:port"),
        ("PAWL_REDIS_URL", "redis://u:p@h:1,,g:2"),
        ("PAWL_NAMESPACE", ""),
        ("PAWL_NAMESPACE", "a b"),
        ("PAWL_NAMESPACE", "{a}"),
        ("PAWL_NAMESPACE", "x" * 65),
        ("PAWL_PARTITIONS", "0"),
        ("PAWL_PARTITIONS", "1025"),
        ("PAWL_DURABILITY_ASSUME", "yes"),
        ("PAWL_SERVER_NAME", "a:b"),
        ("PAWL_BEAT_INTERVAL_MS", "99"),
        ("PAWL_BEAT_INTERVAL_MS", "1.5"),
        ("PAWL_MAX_CALLS_IN_FLIGHT", "0"),
        ("PAWL_LOG_LEVEL", "loud"),
        ("PAWL_LOG_FORMAT", "xml"),
        ("PAWL_METRICS_ADDRESS", "7296"),
        ("PAWL_METRICS_ADDRESS", ":7296"),
        ("PAWL_METRICS_ADDRESS", "localhost:"),
        ("PAWL_METRICS_ADDRESS", "localhost:65536"),
        ("PAWL_METRICS_ADDRESS", "localhost:-1"),
        ("PAWL_METRICS_ADDRESS", "::1:7296"),
        ("PAWL_METRICS_ADDRESS", "0.0.0.0:7296"),
        ("PAWL_METRICS_TYPES", "0"),
        ("PAWL_METRICS_TYPES", "1001"),
        ("PAWL_LIMIT_STEPS_PER_TURN", "0"),
        ("PAWL_LIMIT_MESSAGE_BYTES", "1048577"),
        ("PAWL_LIMIT_PENDING_MESSAGES", "many"),
    ],
)
def test_a_bad_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(BadSetting) as refused:
        from_env({name: value})
    assert refused.value.setting == name
    assert str(refused.value).startswith(f"{name}: ")


def test_a_cluster_may_be_named_by_several_hosts() -> None:
    url = "rediss://user:secret@a.example:6380,b.example,[::1]:7000/0"
    assert from_env({"PAWL_REDIS_URL": url}).redis_url == url


def test_no_password_reaches_an_error() -> None:
    with pytest.raises(BadSetting) as refused:
        from_env({"PAWL_REDIS_URL": "http://user:secret@host"})
    assert "secret" not in str(refused.value)


def test_a_name_of_its_own() -> None:
    assert Settings(server_name="x").stable_name == "x"
    assert Settings(port=1).stable_name.endswith("-1")
    assert Settings(host="unix:/tmp/a b/s").stable_name.endswith("-unix-_tmp_a-b_s")
    assert limit_variable("state_bytes") == "PAWL_LIMIT_STATE_BYTES"


def test_kubernetes_variables_of_a_service_are_explained() -> None:
    with pytest.raises(BadSetting, match="enableServiceLinks"):
        from_env({"PAWL_PORT": "tcp://10.0.0.1:7295"})
    names = ["PAWL_SERVICE_HOST", "PAWL_SERVICE_PORT", "PAWL_PORT_7295_TCP", "PAWL_PORT_7295_TCP_ADDR"]
    found = load(env=dict.fromkeys([*names, "PAWL_ADDRESS", "PAWL_PROT"], "x"), folder=NOWHERE)
    assert found.unknown == ("PAWL_PROT",)


FILE = """
# Settings of a test.
port = 1
namespace = "shop"
beat_interval_ms = 500
insecure = true
redis_url = ""
data_dir = "data"

[limits]
steps_per_turn = 10
state_bytes = 20
"""


def written(folder: Path, text: str, name: str = "pawl.toml") -> Path:
    """A file of settings."""
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.spec("R-SETTING-1")
def test_options_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)
    env = {"PAWL_BEAT_INTERVAL_MS": "700", "PAWL_NAMESPACE": "env", "PAWL_LIMIT_STATE_BYTES": "30"}
    found = load({"namespace": "option"}, env=env, folder=tmp_path)
    settings = found.settings
    assert (settings.port, settings.insecure, settings.redis_url) == (1, True, None)
    assert (settings.namespace, settings.beat_interval_ms) == ("option", 700)
    assert settings.limits == Limits(steps_per_turn=10, state_bytes=30)
    assert settings.data_dir == tmp_path / "data", "relative to the file"
    origins = {each.name: each.origin for each in found.in_force()}
    assert origins["port"] == Origin("file", f"{path}, line 3")
    assert origins["namespace"] == Origin("option", "--namespace")
    assert origins["beat_interval_ms"] == Origin("environment", "PAWL_BEAT_INTERVAL_MS")
    assert origins["limits.steps_per_turn"] == Origin("file", f"{path}, line 11")
    assert origins["limits.state_bytes"] == Origin("environment", "PAWL_LIMIT_STATE_BYTES")
    assert origins["sweep_budget"] == Origin("default")
    assert len(origins) == len(dataclasses.fields(Settings)) - 1 + len(dataclasses.fields(Limits))


@pytest.mark.spec("R-SETTING-1")
def test_which_file_is_read(tmp_path: Path) -> None:
    usual = written(tmp_path, "port = 1")
    named = written(tmp_path, "port = 2", "named.toml")
    given = written(tmp_path, "port = 3", "given.toml")
    env = {"PAWL_CONFIG": str(named)}

    def read(**more: Any) -> tuple[int, Path | None]:
        found = load(folder=tmp_path, **more)
        return found.settings.port, found.file

    assert read(env={}) == (1, usual)
    assert read(env=env) == (2, named)
    assert read(env=env, file=given) == (3, given)
    assert load(env={}, folder=NOWHERE).file is None
    assert (
        load(env={}, folder=tmp_path, defaults={"port": 4, "log_level": "error"}).settings.log_level
        == "error"
    )
    with pytest.raises(BadSetting, match=r"absent\.toml: can't be read: No such file"):
        load(env={"PAWL_CONFIG": str(tmp_path / "absent.toml")})


@pytest.mark.spec("R-SETTING-2")
@pytest.mark.parametrize(
    ("text", "line", "key", "why"),
    [
        ("\nprot = 1", 2, "prot", "there is no such setting; did you mean port?"),
        ("x = 1", 1, "x", "there is no such setting"),
        ("[limit]\nstate_bytes = 1", 1, "limit", "there is no such setting; did you mean [limits]?"),
        ("state_bytes = 1", 1, "state_bytes", "there is no such setting; did you mean limits.state_bytes?"),
        ("[limits]\nport = 1", 2, "limits.port", "there is no such setting"),
        ("limits = 3", 1, "limits", "there is no such setting"),
        ("PAWL_PORT = 1", 1, "PAWL_PORT", "there is no such setting; did you mean port?"),
        ("# port\n'port' = 65536", 2, "port", "65536 is not within 0 to 65,535"),
        ('port = "1"', 1, "port", "'1' is not a whole number"),
        ("port = true", 1, "port", "true is not a whole number"),
        ("insecure = 1", 1, "insecure", "1 is neither true nor false"),
        ("namespace = 3", 1, "namespace", "3 is not a text in quotes"),
        ("[limits]\nsteps_per_turn = 0", 2, "limits.steps_per_turn", "0 is not within 1 to 2,000"),
        ("limits.steps_per_turn = 0", 1, "limits.steps_per_turn", "0 is not within 1 to 2,000"),
        ('log_level = "loud"', 1, "log_level", "'loud' is none of debug, info, warning, error"),
        ('host = "0.0.0.0"', 1, "host", "'0.0.0.0' is not loopback"),
    ],
)
def test_a_bad_file_names_line_and_key(tmp_path: Path, text: str, line: int, key: str, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadSetting) as refused:
        load(env={}, folder=tmp_path)
    assert str(refused.value).startswith(f"{path}, line {line}: {key}: {why}")


@pytest.mark.spec("R-SETTING-2")
def test_a_file_that_is_no_toml_names_the_line(tmp_path: Path) -> None:
    path = written(tmp_path, "port = 1\nhost =\n")
    with pytest.raises(BadSetting, match="line 2") as refused:
        load(env={}, folder=tmp_path)
    assert str(refused.value).startswith(f"{path}: is not TOML: ")
    path.write_bytes(b"\xff")
    with pytest.raises(BadSetting, match="is not TOML"):
        load(env={}, folder=tmp_path)


@pytest.mark.spec("R-SETTING-2")
def test_a_bad_option_is_named_as_it_is_spelled() -> None:
    with pytest.raises(BadSetting) as refused:
        load({"metrics_address": "x"}, flags={"metrics_address": "--metrics"}, env={}, folder=NOWHERE)
    assert str(refused.value).startswith("--metrics: 'x' is not of the form host:port")
    assert refused.value.setting == "PAWL_METRICS_ADDRESS"
    with pytest.raises(BadSetting, match=r"^--sweep-budget: 0 is not within 1 to 1,000$"):
        load({"sweep_budget": 0}, env={}, folder=NOWHERE)


@pytest.mark.spec("R-SETTING-3")
def test_passwords_are_never_shown(tmp_path: Path) -> None:
    url = "rediss://user:secret@redis.example:6380/2?password=secret"
    shown = {each.name: each.value for each in load({"redis_url": url}, env={}, folder=NOWHERE).in_force()}
    assert shown["redis_url"] == "rediss://user:***@redis.example:6380/2?password=***"
    written(tmp_path, 'redis_url = "http://user:secret@host"')
    with pytest.raises(BadSetting) as refused:
        load(env={}, folder=tmp_path)
    assert "secret" not in str(refused.value)
