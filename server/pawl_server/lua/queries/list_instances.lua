--- list_instances: reads the instances of a type in this partition, in order of creation.
-- @keyspace meta i ids tag key type x waiting
-- @arg   now_ms      int  engine time in virtual-time namespaces
-- @arg   by          str  "ids" for all, "tag" or "key" for those with a tag or correlation key
-- @arg   type        str  workflow type
-- @arg   word        str  the tag or key
-- @arg   from_ms     int  earliest creation wanted
-- @arg   before_ms   int  end of the creations wanted; 0 for none
-- @arg   after_ms    int  creation time of the last instance seen; 0 to begin
-- @arg   after_id    str  id of the last instance seen
-- @arg   limit       int  instances wanted, 1 to 101
-- @reply OK(entries list)
-- @oom   reads
-- @lane  bulk
-- @spec  R-READ-4, R-READ-5
--!include view order

local now = meta_load(now_ms)
local key = T .. 'ids:' .. type
if by == 'tag' then
  key = T .. 'tag:' .. type .. ':' .. word
elseif by == 'key' then
  key = T .. 'key:' .. type .. ':' .. word
end
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
elseif from_ms > 0 then
  start = redis.call('ZCOUNT', key, '-inf', '(' .. string.format('%.0f', from_ms))
end
local found = redis.call('ZRANGE', key, start, start + limit - 1, 'WITHSCORES')
local entries = {}
for i = 1, #found, 2 do
  if before_ms > 0 and tonumber(found[i + 1]) >= before_ms then
    break
  end
  local u = view_load(now, found[i], 'o')
  if u then
    entries[#entries + 1] = { found[i], record_pack(u.r), u.tv, unit_get(u, 'o') }
  end
end
return { now, { { 'OK', entries } }, {} }
