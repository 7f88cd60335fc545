--- list_parked: reads parked turns of a type in order of version, instance and turn.
-- @keyspace meta i parked type x waiting
-- @arg   now_ms     int  engine time in virtual-time namespaces
-- @arg   prefix     str  type: or type:version:id:
-- @arg   after      str  member after which to begin; empty for the first page
-- @arg   limit      int  turns wanted, 1 to 101
-- @arg   max_bytes  int  stop once this many bytes are read
-- @reply OK(entries list, last str)
-- @oom   reads
-- @lane  bulk
-- @spec  R-READ-8
--!include view

local now = meta_load(now_ms)
local from = after == '' and '[' .. prefix or '(' .. after
local found = redis.call('ZRANGEBYLEX', T .. 'parked', from, '(' .. string.sub(prefix, 1, -2) .. ';', 'LIMIT', 0, limit)
local entries, bytes, last = {}, 0, ''
for i = 1, #found do
  if bytes >= max_bytes then
    break
  end
  last = found[i]
  local id, turn = string.match(found[i], '([^:]*):(%d+)$')
  turn = string.format('%.0f', tonumber(turn))
  local u = view_load(now, id)
  local kept = u and unit_get(u, turn .. '.p')
  if kept then
    bytes = bytes + #kept
    entries[#entries + 1] = { found[i], id, tonumber(turn), record_pack(u.r), kept, unit_get(u, turn .. '.h') or '' }
  end
end
local more = #found == limit or last ~= (found[#found] or '')
return { now, { { 'OK', entries, more and last or '' } }, {} }
