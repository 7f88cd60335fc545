--- open_namespace: fixes the number of partitions and the kind of clock of a namespace; the first caller decides.
-- @keyspace meta
-- @arg   partitions  int   wanted number of partitions
-- @arg   virtual     bool  wanted kind of clock
-- @reply OK(partitions int, virtual bool, created bool)
-- @oom   allow
-- @writes direct
-- @spec  R-STORE-1

local stored = redis.call('HMGET', T .. 'meta', 'partitions', 'virtual')
local reply
if stored[1] then
  reply = { 'OK', tonumber(stored[1]), tonumber(stored[2]), 0 }
else
  reply = { 'OK', partitions, virtual and 1 or 0, 1 }
  redis.call('HSET', T .. 'meta', 'partitions', partitions, 'virtual', virtual and '1' or '0', 'schema', '1')
end
return { 0, { reply }, {} }
