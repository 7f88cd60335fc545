--- get_instance: reads instances as they stand now.
-- @keyspace meta i type l x waiting
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @item  id      str  instance id
-- @reply OK(record bytes, tv str, birth bytes, state bytes, operation bytes) | NOT_FOUND
-- @oom   reads
-- @lane  bulk
-- @spec  R-READ-1
--!include view

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  -- One that is being deleted says so; its fields go one after the other, so that no other read has an answer.
  local u = settled_load(now, '', id, 's', 'o') or MISSING.deleting and UNITS[id] or nil
  local reply = not u and unit_absent()
  if not reply then
    view_unrecorded(u)
    -- Packed before if the instance is asked for twice: trailing zeros are gone then.
    local operation = (u.r[OP] or 0) > OP_LEFT and unit_get(u, u.r[HEAD] .. '.o') or ''
    reply = { 'OK', record_pack(u.r), u.tv, unit_get(u, 'o'), unit_get(u, 's') or '', operation }
  end
  replies[#replies + 1] = reply
end
return { now, replies, {} }
