"""Settings of the server and what they may be. Where they come from: configuration.py."""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pawl_server.domain.limits import Limits

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
_PORTS = 65_535
_LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))


class BadSetting(ValueError):
    """A setting has a bad value, or there is no such setting.

    `setting` is its environment variable, or the key of a file that names none; `why` says what is wrong,
    `where` names the place of the value: file, line and key, variable, or option.
    """

    def __init__(self, setting: str, why: str, where: str = "") -> None:
        super().__init__(f"{where or setting}: {why}")
        self.setting = setting
        self.why = why
        self.where = where or setting


def _setting(
    default: Any,
    *,
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A field; one that is `secret` is a URL whose password is never shown."""
    return field(default=default, metadata={"min": low, "max": high, "choices": choices, "secret": secret})


@dataclass(frozen=True)
class Settings:
    """Everything that can be set. Times are in ms. Raises BadSetting for a value out of range."""

    host: str = "127.0.0.1"
    """Address to listen on, or `unix:/path` for a unix socket. Only loopback unless `insecure`."""
    port: int = _setting(7295, low=0, high=65_535)
    """TCP port; 0 takes a free one."""
    processes: int = _setting(1, low=1, high=64)
    """Server processes that share the port; more than one need a TCP port."""
    advertise_host: str = ""
    """Host under which workers reach each single process; empty means `host`, or the machine's address."""
    insecure: bool = False
    """Allows listening beyond loopback although there are no credentials and no encryption yet."""
    redis_url: str | None = _setting(None, secret=True)
    """`redis://`, `rediss://` or `unix://` URL of the store; unset: the embedded server in `data_dir`.

    Of a cluster any node, or several hosts with commas between them: `redis://a:6379,b:6379`.
    """
    data_dir: Path = Path(".pawl")
    """Folder of the embedded server. One server at a time."""
    namespace: str = "default"
    """Namespace to work on, `[A-Za-z0-9_.-]{1,64}`."""
    partitions: int | None = _setting(None, low=1, high=1_024)
    """Number of partitions of a namespace that does not exist yet.

    Unset means what is stored, else 2, or 64 on a Redis Cluster.
    """
    durability_assume: str | None = _setting(None, choices=("fsync", "everysec", "memory"))
    """Level to report where Redis hides its settings; the operator vouches for it."""
    virtual_time: bool = False
    """For tests: time stands still until ClockService moves it. Stored data keep to their kind of time."""
    server_name: str = ""
    """Name of this server that stays the same over restarts; empty means host name and address."""
    beat_interval_ms: int = _setting(2_000, low=100, high=60_000)
    """Beats on work streams; either side may judge the other dead after three silent ones."""
    poll_interval_ms: int = _setting(1_000, low=50, high=60_000)
    """How soon a lost notification is made good for."""
    delivery_timeout_ms: int = _setting(5_000, low=100, high=60_000)
    """Time for a worker to receive a turn that was handed to it."""
    stream_max_age_ms: int = _setting(1_800_000, low=0, high=86_400_000)
    """Age, give or take a fifth, at which a work stream is to move, to spread load anew; 0 means never."""
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
    log_format: str = _setting("auto", choices=("auto", "text", "json"))
    """`text` (key=value) or `json`, one line per record; `auto` is text on a terminal and else JSON."""
    metrics_address: str = ""
    """`host:port` that serves `/metrics` for Prometheus; empty: off. Only loopback unless `insecure`."""
    metrics_types: int = _setting(100, low=1, high=1_000)
    """How many type:version pairs metrics name in labels; the others are summed up as `(other)`."""
    limits: Limits = field(default_factory=Limits)
    """Limits in force; see domain/limits.py."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            _check_range(variable(item.name), getattr(self, item.name), item.metadata)
        for item in dataclasses.fields(self.limits):
            _check_range(limit_variable(item.name), getattr(self.limits, item.name), item.metadata)
        self._check_address()
        if self.virtual_time and self.processes > 1:
            raise BadSetting("PAWL_VIRTUAL_TIME", "needs a single process (PAWL_PROCESSES=1)")
        if not _NAMESPACE.fullmatch(self.namespace):
            raise BadSetting("PAWL_NAMESPACE", f"{self.namespace!r} does not match {_NAMESPACE.pattern}")
        if self.server_name and not _NAME.fullmatch(self.server_name):
            raise BadSetting("PAWL_SERVER_NAME", f"{self.server_name!r} does not match {_NAME.pattern}")
        if self.redis_url is not None:
            _check_url(self.redis_url)
        self._check_metrics()

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

        if self.processes > 1 and self.host.startswith("unix:"):
            raise BadSetting("PAWL_PROCESSES", f"{self.processes} processes can't share a unix socket")
        if self.advertise_host and not _HOST.fullmatch(self.advertise_host):
            raise BadSetting("PAWL_ADVERTISE_HOST", f"{self.advertise_host!r} is no host name and no address")

    def _check_metrics(self) -> None:
        if self.metrics_address:
            host, _ = host_and_port("PAWL_METRICS_ADDRESS", self.metrics_address)
            if host not in _LOOPBACK and not self.insecure:
                raise BadSetting(
                    "PAWL_METRICS_ADDRESS",
                    f"{host!r} is not loopback: set PAWL_INSECURE=1 (--insecure) if the network is trusted",
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


def variable(name: str) -> str:
    """Environment variable of a field."""
    return f"PAWL_{name.upper()}"


def limit_variable(name: str) -> str:
    """Environment variable of a limit."""
    return f"PAWL_LIMIT_{name.upper()}"


def host_and_port(setting: str, address: str) -> tuple[str, int]:
    """The parts of `host:port` or `[host]:port`. Raises BadSetting."""
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or (":" in bare) != host.startswith("["):
        raise BadSetting(setting, f"{address!r} is not of the form host:port or [host]:port")
    if not port.isascii() or not port.isdigit() or int(port) > _PORTS:
        raise BadSetting(setting, f"{port!r} is no port from 0 to {_PORTS:,}")
    return bare, int(port)


def _check_range(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    low, high = metadata.get("min"), metadata.get("max")
    if value is None:
        return
    if (low is not None and value < low) or (high is not None and value > high):
        raise BadSetting(name, f"{value} is not within {low:,} to {high:,}")
    choices = metadata.get("choices")
    if choices and value not in choices:
        raise BadSetting(name, f"{value!r} is none of {', '.join(choices)}")


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise BadSetting("PAWL_REDIS_URL", "begins with none of redis://, rediss://, unix://")
    if parts.scheme == "unix":
        if not parts.path:
            raise BadSetting("PAWL_REDIS_URL", "names no host and no socket")
        return
    for host in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{host}")
        if not one.hostname:
            raise BadSetting("PAWL_REDIS_URL", "names no host and no socket")
        try:
            one.port  # noqa: B018  reading it checks it
        except ValueError:
            raise BadSetting("PAWL_REDIS_URL", "has a port that is no number up to 65,535") from None
