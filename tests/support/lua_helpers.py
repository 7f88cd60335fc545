"""Pure helpers of lua/lib in-process, through lupa's Lua 5.1, the version inside Redis and Valkey."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgpack
from lupa import lua51

from pawl_server.store.bundle import library_text, load_libs

_STUBS = "local T = '{test}'\nlocal redis = { call = function() error('a pure helper calls redis') end }\n"


class Helpers:
    """Functions of lua/lib by name: `Helpers("policy_delay").policy_delay(unit, policy, 3)`.

    Python lists and dicts go in as Lua tables; tables come out as lupa tables, see `to_list`. Strings are
    bytes.
    """

    def __init__(self, *names: str) -> None:
        self._lua: Any = cast(Any, lua51.LuaRuntime)(encoding=None, unpack_returned_tuples=True)
        self._lua.globals().cmsgpack = self._lua.table_from({b"pack": self._pack, b"unpack": self._unpack})
        exported = ", ".join(f"{name} = {name}" for name in names)
        text = f"{_STUBS}{library_text(names, load_libs())}return {{ {exported} }}"
        self._functions = self._lua.execute(text.encode())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self._functions[name.encode()]
        return lambda *args: function(*(self.table(arg) for arg in args))

    def put(self, table: str, key: str, value: Any) -> None:
        """Sets an entry of a table that was named."""
        self._functions[table.encode()][key.encode()] = self.table(value)

    def table(self, value: Any) -> Any:
        """Lists and dicts as Lua tables, text as bytes, anything else as it is."""
        if isinstance(value, Mapping):
            return self._lua.table_from({self.table(key): self.table(one) for key, one in value.items()})
        if isinstance(value, list):
            return self._lua.table_from([self.table(one) for one in value])
        return value.encode() if isinstance(value, str) else value

    def _pack(self, value: Any) -> bytes:
        return cast(bytes, msgpack.packb(to_list(value)))

    def _unpack(self, raw: bytes) -> Any:
        return self.table(msgpack.unpackb(raw, raw=True))


def to_list(table: Any) -> list[Any]:
    """The array part of a Lua table, nested tables too; whole numbers as int."""
    return [_plain(table[at]) for at in range(1, len(table) + 1)]


def _plain(value: Any) -> Any:
    if lua51.lua_type(value) == "table":
        return to_list(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value
