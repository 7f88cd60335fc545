--- scan_keys: reads some names of the partition's keys. Every key that is there the whole time is named at least once.
-- @keyspace meta
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   cursor  str  "0" to begin, then what the last call answered, until that is "0"
-- @arg   limit   int  keys to look at, 1 to 1,000; Redis may look at somewhat more
-- @reply OK(cursor str, names list)
-- @oom   reads
-- @lane  bulk
-- @spec  R-FSCK-1
--!include meta

local now = meta_load(now_ms)
-- The prefix holds no character with a meaning in patterns.
local page = redis.call('SCAN', cursor, 'MATCH', T .. '*', 'COUNT', limit)
local names = {}
for i = 1, #page[2] do
  names[i] = string.sub(page[2][i], #T + 1)
end
return { now, { { 'OK', page[1], names } }, {} }
