--- list_types: reads workflow types by name, those without settings included.
-- @keyspace meta type typeindex
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   after   str  name of the last type seen; empty to begin
-- @arg   limit   int  types wanted, 1 to 100
-- @reply OK(entries list)
-- @oom   reads
-- @lane  bulk
-- @spec  R-TYPE-3, R-TYPE-5
--!include meta

local now = meta_load(now_ms)
local names = redis.call('ZRANGEBYLEX', T .. 'typeindex', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
local entries = {}
for i = 1, #names do
  local stored = redis.call('HMGET', T .. 'type:' .. names[i], 'v', 'p')
  entries[i] = { names[i], tonumber(stored[1]) or 0, stored[2] or '' }
end
return { now, { { 'OK', entries } }, {} }
