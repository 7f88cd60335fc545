--- get_turn: reads turns as they stand now.
-- @keyspace meta i type l x waiting
-- @arg   now_ms    int   engine time in virtual-time namespaces
-- @item  id        str   instance id
-- @item  turn      int   turn number
-- @item  payloads  bool  whether to read the steps
-- @reply OK(record bytes, tv str, birth bytes, view list) | NOT_FOUND | PRUNED(incarnation int)
-- @oom   reads
-- @lane  bulk
-- @spec  R-READ-2
--!include view

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, '', id, 'o')
  local reply = u and { 'NOT_FOUND' } or unit_absent()
  if u and turn >= 1 and turn <= u.r[TAIL] then
    local view = view_turn(u, turn, payloads)
    reply = view and { 'OK', record_pack(u.r), u.tv, unit_get(u, 'o'), view } or { 'PRUNED', u.r[INC] }
  end
  replies[#replies + 1] = reply
end
return { now, replies, {} }
