--- list_inbox: reads the unfinished turns of an instance, oldest first, then its delayed messages by due time and arrival.
-- @keyspace meta i l type x waiting
-- @arg   now_ms     int   engine time in virtual-time namespaces
-- @arg   id         str   instance id
-- @arg   after      int   turn after which to begin; 0 for the first page
-- @arg   after_due  str   due time and member of the last delayed message seen; empty to begin
-- @arg   limit      int   entries wanted, 1 to 100
-- @arg   payloads   bool  whether to read the messages
-- @arg   max_bytes  int   stop once this many bytes are read
-- @reply OK(record bytes, tv str, birth bytes, turns list, delayed list, turn int, due str, more bool, oldest bytes, newest bytes) | NOT_FOUND
-- @oom   reads
-- @lane  bulk
-- @spec  R-READ-6
--!include view order

local now = meta_load(now_ms)
local u = settled_load(now, '', id, 'o')
if not u then
  return { now, { unit_absent() }, {} }
end
local r = u.r
local entries, delayed, bytes = {}, {}, 0

-- A message record without its message, unless that is wanted, and the size of the message.
local function slim(raw)
  local m = cmsgpack.unpack(raw)
  local size = #m[4] - (string.find(m[4], '\0', 1, true) or 0)
  if not payloads then
    m[4] = ''
    raw = cmsgpack.pack(m)
  end
  bytes = bytes + #raw
  return raw, size
end

local turn = math.max(after + 1, r[HEAD])
while turn <= r[TAIL] and #entries < limit and bytes < max_bytes do
  local v = view_fields(u, { turn .. '.m', turn .. '.h', turn .. '.f' })
  if v[1] and not v[2] then
    local raw, size = slim(v[1])
    entries[#entries + 1] = { { turn, raw, '', v[3] or '', {}, '', '', {}, view_wait(u, turn) }, size }
  end
  turn = turn + 1
end
local more, due = turn <= r[TAIL], after_due
if not more and r[DELAYED] > 0 then
  local found = redis.call('ZRANGE', T .. 'l:' .. id, 0, -1, 'WITHSCORES')
  local score = tonumber(string.match(after_due, '^%d+'))
  local member = string.match(after_due, ' (.*)$')
  for i = 1, #found, 2 do
    local at = tonumber(found[i + 1])
    if not score or at > score or (at == score and not up_to(found[i], member)) then
      if #entries + #delayed >= limit or bytes >= max_bytes then
        more = true
        break
      end
      due = string.format('%.0f %s', at, found[i])
      local q = unit_get(u, 'q:' .. string.sub(found[i], 17))
      if q then
        local raw, size = slim(q)
        delayed[#delayed + 1] = { raw, size }
      end
    end
  end
end
local newest = r[PENDING] > 0 and unit_get(u, r[TAIL] .. '.m') or ''
local oldest = r[PENDING] > 0 and unit_get(u, r[HEAD] .. '.m') or ''
local reply = { 'OK', record_pack(r), u.tv, unit_get(u, 'o'), entries, delayed, turn - 1, due, more and 1 or 0, oldest, newest }
return { now, { reply }, {} }
