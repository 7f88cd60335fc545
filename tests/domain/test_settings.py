"""Settings: what the environment may say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pawl_server.domain.limits import Limits
from pawl_server.settings import BadSetting, Settings, limit_variable, variable


def test_defaults() -> None:
    settings = Settings.from_env(env={})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.redis_url) == ("127.0.0.1", 7295, None)
    assert settings.data_dir == Path(".pawl")
    assert settings.limits == Limits()


def test_every_field_has_a_variable_and_options_win() -> None:
    env = {
        "PAWL_HOST": "::1",
        "PAWL_PORT": "0",
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
        "PAWL_SWEEP_BUDGET": "10",
        "PAWL_MAX_CALLS_IN_FLIGHT": "99",
        "PAWL_STORE_TIMEOUT_MS": "700",
        "PAWL_START_TIMEOUT_MS": "800",
        "PAWL_STOP_GRACE_MS": "900",
        "PAWL_LOG_LEVEL": "debug",
        "PAWL_LOG_FORMAT": "json",
        "PAWL_LIMIT_STEPS_PER_TURN": "200",
    }
    settings = Settings.from_env(env=env)
    default = Settings()
    for field in dataclasses.fields(Settings):
        assert getattr(settings, field.name) != getattr(default, field.name), field.name
        assert field.name == "limits" or variable(field.name) in env
    assert (settings.partitions, settings.insecure) == (64, True)
    assert settings.data_dir == Path("/var/lib/pawl")
    assert settings.limits == Limits(steps_per_turn=200)
    overridden = Settings.from_env({"port": 9, "host": None, "data_dir": Path("x")}, env=env)
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
        ("PAWL_LIMIT_STEPS_PER_TURN", "0"),
        ("PAWL_LIMIT_MESSAGE_BYTES", "1048577"),
        ("PAWL_LIMIT_PENDING_MESSAGES", "many"),
    ],
)
def test_a_bad_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(BadSetting) as refused:
        Settings.from_env(env={name: value})
    assert refused.value.setting == name
    assert str(refused.value).startswith(f"{name}: ")


def test_no_password_reaches_an_error() -> None:
    with pytest.raises(BadSetting) as refused:
        Settings.from_env(env={"PAWL_REDIS_URL": "http://user:secret@host"})
    assert "secret" not in str(refused.value)


def test_a_name_of_its_own() -> None:
    assert Settings(server_name="x").stable_name == "x"
    assert Settings(port=1).stable_name.endswith("-1")
    assert Settings(host="unix:/tmp/a b/s").stable_name.endswith("-unix-_tmp_a-b_s")
    assert limit_variable("state_bytes") == "PAWL_LIMIT_STATE_BYTES"
