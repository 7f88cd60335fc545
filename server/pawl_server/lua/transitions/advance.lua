--- advance: moves the clock of a virtual-time namespace forward, never back, and says when something is due next.
-- @keyspace meta due
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   to_ms   int  engine time to move to; one that has passed moves nothing
-- @reply OK(next_ms int) | WRONG_STATE(state str)
-- @oom   allow
-- @writes direct
-- @spec  R-VIRTUAL-1
--!include meta

local now = meta_load(now_ms)
if not META.virtual then
  return { now, { { 'WRONG_STATE', 'real_time' } }, {} }
end
now = math.max(now, to_ms)
local upcoming = redis.call('ZRANGEBYSCORE', T .. 'due', '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
redis.call('HSET', T .. 'meta', 'now', string.format('%.0f', now))
return { now, { { 'OK', tonumber(upcoming[2]) or 0 } }, {} }
