--- list_instances: reads the instances of a type in this partition, in order of creation.
-- @keyspace meta i ids
-- @arg   now_ms      int  engine time in virtual-time namespaces
-- @arg   type        str  workflow type
-- @arg   after_ms    int  creation time of the last instance seen; 0 to begin
-- @arg   after_id    str  id of the last instance seen
-- @arg   limit       int  instances wanted, 1 to 100
-- @reply OK(entries list)
-- @oom   reads
-- @lane  bulk
-- @spec  R-READ-4
--!include view

-- Order of bytes, as in a sorted set; `<` follows the locale of the Redis process.
local function up_to(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a <= #b
end

local now = meta_load(now_ms)
local key = T .. 'ids:' .. type
local start = 0
if after_ms > 0 then
  local rank = redis.call('ZRANK', key, after_id)
  if rank then
    start = rank + 1
  else
    -- The marker belongs to another partition: skip what is older, and ids of the same millisecond up to it.
    start = redis.call('ZCOUNT', key, '-inf', '(' .. string.format('%.0f', after_ms))
    local same = redis.call('ZRANGEBYSCORE', key, after_ms, after_ms)
    for i = 1, #same do
      if up_to(same[i], after_id) then
        start = start + 1
      end
    end
  end
end
local found = redis.call('ZRANGE', key, start, start + limit - 1)
local entries = {}
for i = 1, #found do
  local u = view_load(now, found[i], 'o')
  if u then
    entries[#entries + 1] = { found[i], record_pack(u.r), u.tv, unit_get(u, 'o') }
  end
end
return { now, { { 'OK', entries } }, {} }
