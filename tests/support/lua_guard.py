"""The guard of test bundles: Lua text that wraps redis.call before a script runs.

A guarded script fails, with an error that begins with GUARD, when it
- touches a key outside its partition's tag, or of a keyspace that its header does not declare,
- reads after its first write ("compute, then write"), or writes although it is a query,
- calls a command that tools/lua_rules.py does not list.

It takes one more ARGV behind the real ones: n > 0 makes its n-th write fail, with an error that begins with
INJECTED.
"""

from collections.abc import Iterable
from pathlib import Path

from pawl_server.store.bundle import LUA, Bundle, load_bundles
from pawl_server.store.lua_header import Header
from tools.lua_rules import READ_COMMANDS, WRITE_COMMANDS

_GUARD = """
local redis = (function(redis, fail_at)
  local reads, writes, declared = {reads}, {writes}, {declared}
  local all_keys = {{ DEL = true, UNLINK = true, EXISTS = true }}
  local written = 0
  local function fail(text)
    error(redis.error_reply(text))
  end
  local function check(command, key)
    local under = string.sub(key, 1, #T) == T and string.match(string.sub(key, #T + 1), '^[^:]*')
    if not under then
      fail('GUARD ' .. command .. ' outside the partition: ' .. key)
    elseif not declared[under] then
      fail('GUARD ' .. command .. ' of a keyspace that the header does not declare: ' .. under)
    end
  end
  local function call(command, ...)
    if writes[command] then
      written = written + 1
      if {query} then
        fail('GUARD a query writes: ' .. command)
      elseif written == fail_at then
        fail('INJECTED write ' .. written .. ': ' .. command .. ' ' .. (...))
      end
    elseif not reads[command] then
      fail('GUARD unlisted command: ' .. tostring(command))
    elseif written > 0 then
      fail('GUARD a read after a write: ' .. command .. ' ' .. tostring((...)))
    end
    if command == 'SCAN' then
      -- Names keys by a pattern in place of one: that of the whole partition, and no other.
      if select(2, ...) ~= 'MATCH' or select(3, ...) ~= T .. '*' then
        fail('GUARD SCAN outside the partition: ' .. tostring((select(3, ...))))
      end
    elseif command ~= 'TIME' then
      for i = 1, all_keys[command] and select('#', ...) or 1 do
        check(command, (select(i, ...)))
      end
    end
    return redis.call(command, ...)
  end
  return setmetatable({{ call = call }}, {{ __index = redis }})
end)(redis, tonumber(table.remove(ARGV)))
"""


def guard(header: Header) -> str:
    """Returns the guard of one script."""
    return _GUARD.format(
        reads=_lua_set(READ_COMMANDS),
        writes=_lua_set(WRITE_COMMANDS),
        declared=_lua_set(header.keyspaces),
        query="true" if header.kind == "query" else "false",
    ).strip()


def guarded_bundles(folder: Path = LUA) -> dict[str, Bundle]:
    """Returns the guarded bundle of every script of a folder with transitions/, queries/ and lib/."""
    return load_bundles(folder, guard=guard)


def _lua_set(names: Iterable[str]) -> str:
    return "{ " + ", ".join(f"{name} = true" for name in sorted(names)) + " }"
