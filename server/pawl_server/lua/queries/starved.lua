--- starved: reads whether anybody is there for what is ready.
-- @keyspace meta i busy waiting type x
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   limit   int  busy instances to look at per item, 1 to 100
-- @item  tv      str  type:version
-- @reply OK(waiting bool, running bool)
-- @oom   reads
-- @lane  bulk
-- @spec  R-READ-9
--!include view

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local waiting = redis.call('ZCOUNT', T .. 'waiting:' .. tv, now, '+inf')
  local busy = redis.call('ZRANGEBYLEX', T .. 'busy', '[' .. tv .. ':', '(' .. tv .. ';', 'LIMIT', 0, limit)
  local running = false
  for i = 1, #busy do
    local u = view_load(now, string.match(busy[i], '[^:]*$'))
    running = running or u and HELD[u.r[STATE]] or false
  end
  replies[#replies + 1] = { 'OK', waiting > 0 and 1 or 0, running and 1 or 0 }
end
return { now, replies, {} }
