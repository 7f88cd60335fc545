"""Where settings come from: a file, the environment, options of the command line; later ones win.

The file is TOML with one key per field of Settings and a table `limits`:

    redis_url = "redis://redis.example:6379/0"
    metrics_address = "127.0.0.1:7296"

    [limits]
    pending_messages = 1000

The variable of a field is `PAWL_` and its name in capitals; those of limits are `PAWL_LIMIT_<NAME>`.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from pawl_server.domain.limits import Limits
from pawl_server.domain.urls import without_password
from pawl_server.log_lines import SETTINGS_UNKNOWN
from pawl_server.settings import BadSetting, Settings, limit_variable, variable

log = logging.getLogger(__name__)

FILE_VARIABLE = "PAWL_CONFIG"
FILE_NAME = "pawl.toml"
"""Read from the working folder if no other file is named."""
LIMITS = "limits"
_OTHERS = frozenset((FILE_VARIABLE, "PAWL_ADDRESS"))
"""Variables that are no settings of a server but mean something to Pawl."""
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off", ""))
_SERVICE = re.compile(r"PAWL_(SERVICE_(HOST|PORT)|PORT_\d+_TCP)(_\w+)?|PAWL_PORT")
"""Variables that Kubernetes makes up for a service named `pawl`."""

Kind = Literal["default", "file", "environment", "option"]


class Origin(NamedTuple):
    """Where a value comes from. `place` is the file and line, the variable, or the option."""

    kind: Kind
    place: str = ""

    def __str__(self) -> str:
        """Names it for people."""
        return f"{self.kind} {self.place}" if self.place else self.kind


class Setting(NamedTuple):
    """One setting in force. Passwords in `value` are masked; `name` is that of the file's key."""

    name: str
    variable: str
    value: Any
    origin: Origin


@dataclass(frozen=True)
class Configuration:
    """Settings and where each comes from.

    `file` was read, if there is one; `unknown` are PAWL_* variables that mean nothing.
    """

    settings: Settings
    file: Path | None = None
    unknown: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def in_force(self) -> Iterator[Setting]:
        """Every setting, the limits last; what neither file, environment nor options say is a default."""
        for name, known in _KNOWN.items():
            owner = self.settings.limits if known.limit else self.settings
            value = getattr(owner, name.rpartition(".")[2])
            if known.secret and value is not None:
                value = without_password(value)
            yield Setting(name, known.variable, value, self.origins.get(name, Origin("default")))

    def warn(self) -> None:
        """Logs what was given and means nothing."""
        if self.unknown:
            SETTINGS_UNKNOWN(log, names=", ".join(self.unknown))


class _Known(NamedTuple):
    """What a key may hold: `kinds` are the types of its field."""

    variable: str
    kinds: tuple[Any, ...]
    limit: bool
    secret: bool


def _fields() -> Iterator[tuple[str, _Known]]:
    hints = get_type_hints(Settings)
    for item in dataclasses.fields(Settings):
        if item.name != LIMITS:
            hint = hints[item.name]
            kinds = get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
            yield item.name, _Known(variable(item.name), kinds, False, bool(item.metadata.get("secret")))
    for item in dataclasses.fields(Limits):
        yield f"{LIMITS}.{item.name}", _Known(limit_variable(item.name), (int,), True, False)


_KNOWN = dict(_fields())


def load(
    options: Mapping[str, Any] | None = None,
    *,
    flags: Mapping[str, str] | None = None,
    file: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Configuration:
    """Puts the settings together.

    `options` are values given on the command line, by field, None for none; `flags` are their spellings
    where they are not `--field-name`. `file` is the file named there; else PAWL_CONFIG names one, else
    `pawl.toml` in `folder` (the working folder) is read if there is one. `defaults` stand in for those of
    Settings.

    Raises BadSetting, which names file, line and key, the variable or the option, and what is allowed.
    """
    env = os.environ if env is None else env
    values: dict[str, Any] = dict(defaults or {})
    origins: dict[str, Origin] = {}
    found = _file(file, env, folder or Path())
    if found is not None:
        _take_file(found, values, origins)
    for name, known in _KNOWN.items():
        text = env.get(known.variable)
        if text is not None:
            values[name] = _read(known, text)
            origins[name] = Origin("environment", known.variable)
    for name, value in (options or {}).items():
        if value is not None:
            values[name] = value
            flag = (flags or {}).get(name) or f"--{name.replace('_', '-')}"
            origins[name] = Origin("option", flag)
    settings = _settings(values, origins)
    return Configuration(settings, found, tuple(_unknown(env)), origins)


def _settings(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Settings:
    own = {name: value for name, value in values.items() if not _KNOWN[name].limit}
    limits = {name.rpartition(".")[2]: value for name, value in values.items() if _KNOWN[name].limit}
    try:
        return Settings(**own, limits=Limits(**limits))
    except BadSetting as error:
        name = next((name for name, known in _KNOWN.items() if known.variable == error.setting), "")
        origin = origins.get(name)
        if origin is None or origin.kind == "environment":
            raise
        where = f"{origin.place}: {name}" if origin.kind == "file" else origin.place
        raise BadSetting(error.setting, error.why, where) from None


def _unknown(env: Mapping[str, str]) -> Iterator[str]:
    known = {each.variable for each in _KNOWN.values()} | _OTHERS
    for name in sorted(env):
        if name.startswith("PAWL_") and name not in known and not _SERVICE.fullmatch(name):
            yield name


# The environment


def _read(known: _Known, text: str) -> Any:
    kinds = known.kinds
    if type(None) in kinds and text == "":
        return None
    if bool in kinds:
        if text.lower() in _TRUE or text.lower() in _FALSE:
            return text.lower() in _TRUE
        raise BadSetting(known.variable, f"{text!r} is neither true nor false")
    if int in kinds:
        try:
            return int(text)
        except ValueError:
            why = f"{text!r} is not a whole number"
            if _SERVICE.fullmatch(known.variable) and text.startswith("tcp://"):
                why += "; Kubernetes made it up for a service named pawl: set enableServiceLinks to false"
            raise BadSetting(known.variable, why) from None
    return Path(text) if Path in kinds else text


# The file


def _file(named: Path | None, env: Mapping[str, str], folder: Path) -> Path | None:
    if named is not None:
        return named
    if env.get(FILE_VARIABLE):
        return Path(env[FILE_VARIABLE])
    usual = folder / FILE_NAME
    return usual if usual.is_file() else None


def _take_file(path: Path, values: dict[str, Any], origins: dict[str, Origin]) -> None:
    try:
        text = path.read_bytes().decode()
        content = tomllib.loads(text)
    except OSError as error:
        raise BadSetting(FILE_VARIABLE, f"can't be read: {error.strerror or error}", str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(FILE_VARIABLE, f"is not TOML: {error}", str(path)) from None
    for name, value in _flat(content):
        line = _line_of(text, name)
        place = f"{path}, line {line}" if line else str(path)
        known = _KNOWN.get(name)
        if known is None:
            raise BadSetting(name, f"there is no such setting{_meant(name)}", f"{place}: {name}")

        def refuse(why: str, at: str = f"{place}: {name}", setting: str = known.variable) -> BadSetting:
            return BadSetting(setting, why, at)

        values[name] = _typed(known.kinds, value, refuse, path.parent)
        origins[name] = Origin("file", place)


def _flat(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if name == LIMITS and isinstance(value, dict):
            yield from ((f"{LIMITS}.{limit}", each) for limit, each in value.items())
        else:
            yield name, value


def _meant(name: str) -> str:
    """The setting whose name comes closest."""
    bare = name.removeprefix("PAWL_").lower()
    places = {key.rpartition(".")[2]: key for key in _KNOWN} | {key: key for key in _KNOWN}
    places[LIMITS] = f"[{LIMITS}]"
    close = difflib.get_close_matches(bare, places, n=1)
    return f"; did you mean {places[close[0]]}?" if close else ""


def _typed(kinds: tuple[Any, ...], value: Any, refuse: Callable[[str], BadSetting], folder: Path) -> Any:
    """A value of the file as its field wants it. A relative path is one from the file's folder."""
    if bool in kinds:
        if isinstance(value, bool):
            return value
        raise refuse(f"{value!r} is neither true nor false")
    if int in kinds:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise refuse(f"{_shown(value)} is not a whole number")
    if not isinstance(value, str):
        raise refuse(f"{_shown(value)} is not a text in quotes")
    if type(None) in kinds and not value:
        return None
    return folder / value if Path in kinds else value


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[\w-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[\w-]+))*)\s*=""")


def _line_of(text: str, name: str) -> int:
    """The line that sets a key, counted from 1; 0 if it is written in a way that this does not find."""
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.fullmatch(line):
            table = _plain(header[1]) + "."
            if table.rstrip(".") == name:
                return number
        elif (key := _KEY.match(line)) and table + _plain(key[1]) == name:
            return number
    return 0


def _plain(key: str) -> str:
    return re.sub(r"""["'\s]""", "", key)
