--- stats: counts what waits, by type and version and in all.
-- @keyspace meta types ready busy failed paused parked damaged due
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   limit   int  type:version pairs wanted, 1 to 1000: first those with the oldest ready heads
-- @reply OK(types list, more bool, parked int, damaged int, timers int, late int, earliest_ms int)
-- @oom   reads
-- @lane  bulk
-- @spec  R-METRIC-2
--!include meta

local now = meta_load(now_ms)
-- Entries are: type:version, ready heads, engine ms of the oldest, instances with unfinished turns, blocked and paused ones.
local types = {}
local seen = {}

local function count(key, tv)
  return redis.call('ZLEXCOUNT', key, '[' .. tv .. ':', '(' .. tv .. ';')
end

local function add(tv)
  if not seen[tv] then
    seen[tv] = true
    local ready = T .. 'ready:' .. tv .. ':0'
    local oldest = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')[2]
    types[#types + 1] = {
      tv,
      redis.call('ZCARD', ready),
      tonumber(oldest) or 0,
      count(T .. 'busy', tv),
      count(T .. 'failed', tv),
      count(T .. 'paused', tv),
    }
  end
end

for _, tv in ipairs(redis.call('ZRANGE', T .. 'types', 0, limit - 1)) do
  add(tv)
end
-- From one type:version of the index to the next, whatever is between them.
local tv
repeat
  local next_one = redis.call('ZRANGEBYLEX', T .. 'busy', tv and '(' .. tv .. ';' or '-', '(~', 'LIMIT', 0, 1)[1]
  tv = next_one and string.match(next_one, '^[^:]*:[^:]*')
  if tv and #types < limit then
    add(tv)
  end
until not tv or #types >= limit

local earliest = redis.call('ZRANGE', T .. 'due', 0, 0, 'WITHSCORES')[2]
local late = redis.call('ZCOUNT', T .. 'due', '-inf', '(' .. string.format('%.0f', now - 1000))
local parked, damaged = redis.call('ZCARD', T .. 'parked'), redis.call('ZCARD', T .. 'damaged')
local timers = redis.call('ZCARD', T .. 'due')
return { now, { { 'OK', types, tv and 1 or 0, parked, damaged, timers, late, tonumber(earliest) or 0 } }, {} }
