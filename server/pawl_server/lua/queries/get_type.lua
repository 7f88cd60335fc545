--- get_type: reads the settings of a workflow type.
-- @keyspace meta type
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @item  name    str  workflow type
-- @reply OK(revision int, settings bytes) | NOT_FOUND
-- @oom   reads
-- @lane  bulk
-- @spec  R-TYPE-1
--!include meta

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local stored = redis.call('HMGET', T .. 'type:' .. name, 'v', 'p')
  replies[#replies + 1] = stored[1] and { 'OK', tonumber(stored[1]), stored[2] } or { 'NOT_FOUND' }
end
return { now, replies, {} }
