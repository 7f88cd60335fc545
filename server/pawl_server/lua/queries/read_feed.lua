--- read_feed: reads entries of the partition's feed, oldest first.
-- @keyspace meta feed
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   after   str  id of an entry
-- @arg   limit   int  entries wanted, 1 to 100
-- @reply OK(entries list) | COMPACTED | REWOUND
-- @oom   reads
-- @lane  bulk
-- @spec  R-WATCH-8, R-WATCH-9
--!include meta

local now = meta_load(now_ms)
local known = redis.call('XRANGE', T .. 'feed', after, after)
if not known[1] then
  -- Everything before the oldest entry was trimmed. An id behind it that is not there was lost with a generation.
  local first = redis.call('XRANGE', T .. 'feed', '-', '+', 'COUNT', 1)
  local oldest = first[1] and tonumber(string.match(first[1][1], '^%d+'))
  local asked = tonumber(string.match(after, '^%d+')) or 0
  return { now, { (not oldest or asked < oldest) and { 'COMPACTED' } or { 'REWOUND' } }, {} }
end
local found = redis.call('XRANGE', T .. 'feed', '(' .. after, '+', 'COUNT', limit)
local entries = {}
for i = 1, #found do
  entries[i] = found[i][2][2]
end
return { now, { { 'OK', entries } }, {} }
