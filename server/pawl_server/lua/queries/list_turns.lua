--- list_turns: reads kept turns of an instance, newest first.
-- @keyspace meta i type l x waiting
-- @arg   now_ms     int   engine time in virtual-time namespaces
-- @arg   id         str   instance id
-- @arg   before     int   only turns below this number; 0 for all
-- @arg   limit      int   turns wanted, 1 to 100
-- @arg   payloads   bool  whether to read the steps
-- @arg   max_bytes  int   stop once this many bytes are read
-- @reply OK(record bytes, tv str, birth bytes, turns list, next int) | NOT_FOUND
-- @oom   reads
-- @lane  bulk
-- @spec  R-READ-3
--!include view

local now = meta_load(now_ms)
local u = settled_load(now, '', id, 'o')
if not u then
  return { now, { unit_absent() }, {} }
end
local turn = u.r[TAIL]
if before > 0 and before <= turn then
  turn = before - 1
end
local turns, bytes = {}, 0
while turn >= u.r[OLDEST] and turn >= 1 and #turns < limit and bytes < max_bytes do
  local view = view_turn(u, turn, payloads)
  if view then
    bytes = bytes + view_bytes(view)
    turns[#turns + 1] = view
  end
  turn = turn - 1
end
local more = turn >= u.r[OLDEST] and turn >= 1
return { now, { { 'OK', record_pack(u.r), u.tv, unit_get(u, 'o'), turns, more and turn + 1 or 0 } }, {} }
