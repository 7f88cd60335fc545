--- poll: reads which types have ready heads, and when the next timer is due.
-- @keyspace meta types due
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @reply OK(types list, due_ms int)
-- @oom   reads
-- @spec  R-DELIVER-3
--!include meta

local now = meta_load(now_ms)
local types = redis.call('ZRANGE', T .. 'types', 0, 999, 'WITHSCORES')
local due = redis.call('ZRANGE', T .. 'due', 0, 0, 'WITHSCORES')
return { now, { { 'OK', types, tonumber(due[2]) or 0 } }, {} }
