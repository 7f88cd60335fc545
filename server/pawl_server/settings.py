"""Settings of the server: one documented PAWL_* environment variable per field.

The variable of a field is `PAWL_` and its name in capitals; those of `limits` are `PAWL_LIMIT_<NAME>`.
Precedence: what the caller passes (the command line's options), the environment, the default.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from pawl_server.domain.limits import Limits

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off", ""))


class BadSetting(ValueError):
    """A setting has a bad value. `setting` is its environment variable, `why` says what is wrong with it."""

    def __init__(self, setting: str, why: str) -> None:
        super().__init__(f"{setting}: {why}")
        self.setting = setting
        self.why = why


def _setting(
    default: Any, *, low: int | None = None, high: int | None = None, choices: tuple[str, ...] = ()
) -> Any:
    return field(default=default, metadata={"min": low, "max": high, "choices": choices})


@dataclass(frozen=True)
class Settings:
    """Everything that can be set. Times are in ms. Raises BadSetting for a value out of range."""

    host: str = "127.0.0.1"
    """Address to listen on, or `unix:/path` for a unix socket. Only loopback unless `insecure`."""
    port: int = _setting(7295, low=0, high=65_535)
    """TCP port; 0 takes a free one."""
    insecure: bool = False
    """Allows listening beyond loopback although there are no credentials and no encryption yet."""
    redis_url: str | None = None
    """`redis://`, `rediss://` or `unix://` URL of the store; unset: the embedded server in `data_dir`."""
    data_dir: Path = Path(".pawl")
    """Folder of the embedded server. One server at a time."""
    namespace: str = "default"
    """Namespace to work on, `[A-Za-z0-9_.-]{1,64}`."""
    partitions: int | None = _setting(None, low=1, high=1_024)
    """Number of partitions of a namespace that does not exist yet; unset means 2, or what is stored."""
    durability_assume: str | None = _setting(None, choices=("fsync", "everysec", "memory"))
    """Level to report where Redis hides its settings; the operator vouches for it."""
    server_name: str = ""
    """Name of this server that stays the same over restarts; empty means host name and address."""
    beat_interval_ms: int = _setting(2_000, low=100, high=60_000)
    """Beats on work streams; either side may judge the other dead after three silent ones."""
    poll_interval_ms: int = _setting(1_000, low=50, high=60_000)
    """How soon a lost notification is made good for."""
    delivery_timeout_ms: int = _setting(5_000, low=100, high=60_000)
    """Time for a worker to receive a turn that was handed to it."""
    sweep_budget: int = _setting(500, low=1, high=1_000)
    """Unfinished instances that the sweep looks at per partition and second."""
    max_calls_in_flight: int = _setting(2_000, low=1, high=100_000)
    """Unary calls at a time; more are refused with OVERLOADED."""
    store_timeout_ms: int = _setting(5_000, low=50, high=60_000)
    """Longest silence of Redis before a connection is given up."""
    start_timeout_ms: int = _setting(10_000, low=100, high=600_000)
    """How long the start waits for Redis."""
    stop_grace_ms: int = _setting(10_000, low=0, high=600_000)
    """How long a stopping server lets calls and running turns end; waits are answered DRAINING at once."""
    log_level: str = _setting("info", choices=("debug", "info", "warning", "error"))
    """Least important level that is logged."""
    log_format: str = _setting("text", choices=("text", "json"))
    """`text` (key=value) or `json`, one line per record."""
    limits: Limits = field(default_factory=Limits)
    """Limits in force; see domain/limits.py."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            _check_range(variable(item.name), getattr(self, item.name), item.metadata)
        for item in dataclasses.fields(self.limits):
            _check_range(limit_variable(item.name), getattr(self.limits, item.name), item.metadata)
        self._check_address()
        if not _NAMESPACE.fullmatch(self.namespace):
            raise BadSetting("PAWL_NAMESPACE", f"{self.namespace!r} does not match {_NAMESPACE.pattern}")
        if self.server_name and not _NAME.fullmatch(self.server_name):
            raise BadSetting("PAWL_SERVER_NAME", f"{self.server_name!r} does not match {_NAME.pattern}")
        if self.redis_url is not None:
            _check_url(self.redis_url)

    def _check_address(self) -> None:
        if self.host.startswith("unix:"):
            if len(self.host) > 100 or self.host == "unix:":
                raise BadSetting("PAWL_HOST", "the path of a unix socket has 1 to 95 bytes")
        elif self.host not in _LOOPBACK and not self.insecure:
            raise BadSetting(
                "PAWL_HOST",
                f"{self.host!r} is not loopback, and this version has no credentials:"
                " set PAWL_INSECURE=1 (--insecure) if the network itself is trusted",
            )

    @property
    def stable_name(self) -> str:
        """`server_name`, or one made of host name and address: the same after a restart."""
        if self.server_name:
            return self.server_name
        address = (
            self.host.replace("/", "_").replace(":", "-") if self.host.startswith("unix:") else str(self.port)
        )
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{socket.gethostname()}-{address}")
        return name[-128:]

    @classmethod
    def from_env(
        cls, overrides: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
    ) -> Settings:
        """Settings from PAWL_* variables. `overrides` are field values that win over them; None is no value.

        Raises BadSetting for a value that can't be read or is out of range.
        """
        env = os.environ if env is None else env
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            text = env.get(variable(item.name))
            if item.name != "limits" and text is not None:
                values[item.name] = _read(variable(item.name), text, hints[item.name])
        limits = {
            item.name: _read(limit_variable(item.name), env[limit_variable(item.name)], int)
            for item in dataclasses.fields(Limits)
            if limit_variable(item.name) in env
        }
        if limits:
            values["limits"] = Limits(**limits)
        values.update({name: value for name, value in (overrides or {}).items() if value is not None})
        return cls(**values)


def variable(name: str) -> str:
    """Environment variable of a field."""
    return f"PAWL_{name.upper()}"


def limit_variable(name: str) -> str:
    """Environment variable of a limit."""
    return f"PAWL_LIMIT_{name.upper()}"


def _read(name: str, text: str, hint: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if type(None) in kinds and text == "":
        return None
    if bool in kinds:
        if text.lower() in _TRUE or text.lower() in _FALSE:
            return text.lower() in _TRUE
        raise BadSetting(name, f"{text!r} is neither true nor false")
    if int in kinds:
        try:
            return int(text)
        except ValueError:
            raise BadSetting(name, f"{text!r} is not a whole number") from None
    return Path(text) if Path in kinds else text


def _check_range(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    low, high = metadata.get("min"), metadata.get("max")
    if value is None:
        return
    if (low is not None and value < low) or (high is not None and value > high):
        raise BadSetting(name, f"{value} is not within {low} to {high}")
    choices = metadata.get("choices")
    if choices and value not in choices:
        raise BadSetting(name, f"{value!r} is none of {', '.join(choices)}")


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise BadSetting("PAWL_REDIS_URL", "begins with none of redis://, rediss://, unix://")
    if not (parts.path if parts.scheme == "unix" else parts.hostname):
        raise BadSetting("PAWL_REDIS_URL", "names no host and no socket")
    try:
        parts.port  # noqa: B018  reading it checks it
    except ValueError:
        raise BadSetting("PAWL_REDIS_URL", "has a port that is no number up to 65,535") from None
