--- name_type: lists a workflow type that may have neither settings nor instances, in its home partition.
-- @keyspace meta typeindex
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   name    str  workflow type
-- @reply OK
-- @oom   deny
-- @writes direct
-- @spec  R-TYPE-5
--!include meta

local now = meta_load(now_ms)

redis.call('ZADD', T .. 'typeindex', 0, name)
return { now, { { 'OK' } }, {} }
