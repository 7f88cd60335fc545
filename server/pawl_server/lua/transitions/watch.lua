--- watch: begins to write the feed of the partition, or goes on, and says where it ends.
-- A feed has no holes from its first entry on. One that has ended, or does not end where it should, begins anew behind
-- everything it ever held, so that an earlier place in it is never taken for a place in the new one. In virtual time it
-- never ends.
-- @keyspace meta feed ch
-- @arg   now_ms   int  engine time in virtual-time namespaces
-- @arg   keep_ms  int  how long it is written if nobody calls again
-- @reply OK(newest str, begun bool)
-- @oom   allow
-- @writes direct
-- @spec  R-WATCH-8
--!include meta

local now = meta_load(now_ms)
local kept = math.max(META.watch, now + keep_ms)
local last = redis.call('XREVRANGE', T .. 'feed', '+', '-', 'COUNT', 1)
local newest = last[1] and last[1][1] or '0-0'
if META.watch > 0 and (META.watch > now or META.virtual) and newest == META.feed then
  redis.call('HSET', T .. 'meta', 'watch', kept)
  return { now, { { 'OK', newest, 0 } }, {} }
end
local offset = tonumber(string.match(META.feed, '^%d+')) or 0
offset = math.max(offset, tonumber(string.match(newest, '^%d+')) or 0) + 1
local id = string.format('%.0f-%.0f', offset, META.gen)
local entry = cmsgpack.pack({ 1, '', id, {} })

redis.call('HSET', T .. 'meta', 'watch', kept, 'feed', id)
redis.call('UNLINK', T .. 'feed')
redis.call('XADD', T .. 'feed', id, 'e', entry)
redis.call('SPUBLISH', T .. 'ch:feed', entry)
return { now, { { 'OK', id, 1 } }, {} }
