--- list_marked: reads instances of a type in order of version and id: busy, failed or paused ones, with the turn at the head.
-- @keyspace meta i busy failed paused type x waiting
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   set     str  "busy", "failed" or "paused"
-- @arg   prefix  str  type: or type:version:
-- @arg   after   str  member after which to begin; empty for the first page
-- @arg   limit   int  members to look at, 1 to 101
-- @reply OK(entries list, last str)
-- @oom   reads
-- @lane  bulk
-- @spec  R-READ-5, R-READ-7
--!include view

local now = meta_load(now_ms)

-- Whether the instance is one of those that the set is for.
local function belongs(u)
  if set == 'failed' then
    return u.r[STATE] == FAILED or u.r[STATE] == UNCERTAIN
  elseif set == 'paused' then
    return has_bit(u.r[FLAGS], 1)
  end
  return u.r[PENDING] > 0
end

local key = T .. 'busy'
if set == 'failed' then
  key = T .. 'failed'
elseif set == 'paused' then
  key = T .. 'paused'
end
local from = after == '' and '[' .. prefix or '(' .. after
local found = redis.call('ZRANGEBYLEX', key, from, '(' .. string.sub(prefix, 1, -2) .. ';', 'LIMIT', 0, limit)
local entries = {}
for i = 1, #found do
  local u = view_load(now, string.match(found[i], '[^:]*$'), 'o')
  if u and unit_member(u) == found[i] and belongs(u) then
    local head = ''
    if u.r[PENDING] > 0 then
      head = view_turn(u, u.r[HEAD], false) or ''
    end
    entries[#entries + 1] = { found[i], u.id, record_pack(u.r), u.tv, unit_get(u, 'o'), head }
  end
end
return { now, { { 'OK', entries, #found == limit and found[#found] or '' } }, {} }
