--- find_message: reads which turn a message became, or when it will be admitted.
-- @keyspace meta i type l x waiting
-- @arg   now_ms      int  engine time in virtual-time namespaces
-- @item  id          str  instance id
-- @item  message_id  str  idempotency id of the message
-- @reply OK(turn int, due_ms int) | NOT_FOUND
-- @oom   reads
-- @lane  bulk
-- @spec  R-AWAIT-2
--!include view

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local known = 'd:' .. message_id
  local u = settled_load(now, '', id, known)
  local reply = u and { 'NOT_FOUND' } or unit_absent()
  local found = u and unit_get(u, known)
  if found == 'q' then
    local q = unit_table(u, 'q:' .. message_id)
    reply = q and { 'OK', 0, q[7] } or { 'DAMAGED' }
  elseif tonumber(found) then
    reply = { 'OK', tonumber(found), 0 }
  end
  replies[#replies + 1] = reply
end
return { now, replies, {} }
