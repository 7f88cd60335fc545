--- get_instance: reads instances as they stand now.
-- @keyspace meta i type l x waiting
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @item  id      str  instance id
-- @reply OK(record bytes, tv str, birth bytes, state bytes) | NOT_FOUND
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
  if u and u.events then
    -- What settling would record is not there yet: nobody could go on from it.
    u.r[SEQ] = u.r[SEQ] - #u.events
    u.events = nil
  end
  replies[#replies + 1] = u and { 'OK', record_pack(u.r), u.tv, unit_get(u, 'o'), unit_get(u, 's') or '' } or unit_absent()
end
return { now, replies, {} }
