--- put_type: stores the settings of a workflow type, or copies them from the type's home partition.
-- @keyspace meta type typeindex
-- @arg   now_ms       int    engine time in virtual-time namespaces
-- @arg   name         str    workflow type
-- @arg   settings     bytes  msgpack array, see lib/type.lua
-- @arg   expected     int    revision that must be stored; -1 for any
-- @arg   revision     int    0 to raise the stored one; above 0 a copy, stored only if it is newer
-- @arg   request_id   str    idempotency id; may be empty
-- @arg   digest       bytes  digest of the settings
-- @reply OK(revision int, settings bytes) | REVISION_CONFLICT(revision int) | BODY_CONFLICT
-- @oom   deny
-- @writes direct
-- @spec  R-TYPE-1, R-TYPE-2
--!include meta

local now = meta_load(now_ms)
local key = T .. 'type:' .. name
local stored = redis.call('HMGET', key, 'v', 'p', 'q', 'd')
local current = tonumber(stored[1]) or 0
if revision == 0 and request_id ~= '' and stored[3] == request_id then
  if stored[4] ~= digest then
    return { now, { { 'BODY_CONFLICT' } }, {} }
  end
  return { now, { { 'OK', current, stored[2] } }, {} }
elseif revision == 0 and expected >= 0 and expected ~= current then
  return { now, { { 'REVISION_CONFLICT', current } }, {} }
elseif revision > 0 and revision <= current then
  return { now, { { 'OK', current, stored[2] } }, {} }
end
local written = revision > 0 and revision or current + 1
local packed = settings
if revision == 0 then
  local p = cmsgpack.unpack(settings)
  p[2] = now
  packed = cmsgpack.pack(p)
end
redis.call('HSET', key, 'v', written, 'p', packed, 'q', request_id, 'd', digest)
redis.call('ZADD', T .. 'typeindex', 0, name)
return { now, { { 'OK', written, packed } }, {} }
