--- hello: introduces a connection to a partition; a Redis run id not seen last starts a new generation.
-- A new generation moves every counter by 2^32, so that what a lost suffix of the log had given out is never given out again.
-- @keyspace meta
-- @arg   now_ms      int   engine time in virtual-time namespaces
-- @arg   run_id      str   INFO run_id of the Redis server
-- @arg   partitions  int   number of partitions of the namespace
-- @arg   virtual     bool  whether the namespace has virtual time
-- @arg   reader      int   newest schema that the caller can read
-- @arg   writer      int   schema that the caller writes
-- @reply OK(gen int, changed bool) | SCHEMA_NEWER(min_reader int, min_writer int) | WRONG_PARTITIONS(partitions int)
-- @oom   allow
-- @writes direct
-- @spec  R-STORE-2, R-FENCE-2
--!include clock

local JUMP = 4294967296
local m = redis.call('HMGET', T .. 'meta', 'run_id', 'gen', 'fence', 'incarnation', 'outbox', 'shift', 'min_reader', 'min_writer', 'partitions')
local now = clock_now(virtual, tonumber(m[6]) or 0, now_ms)
local min_reader, min_writer = tonumber(m[7]) or reader, tonumber(m[8]) or writer
if min_reader > reader or min_writer > writer then
  return { now, { { 'SCHEMA_NEWER', min_reader, min_writer } }, {} }
end
if m[9] and tonumber(m[9]) ~= partitions then
  return { now, { { 'WRONG_PARTITIONS', tonumber(m[9]) } }, {} }
end
local gen = tonumber(m[2]) or 0
if m[1] == run_id then
  return { now, { { 'OK', gen, 0 } }, {} }
end
local jump = m[1] and JUMP or 0
local fields = {
  'run_id', run_id,
  'gen', gen + 1,
  'fence', string.format('%.0f', (tonumber(m[3]) or 0) + jump),
  'incarnation', string.format('%.0f', (tonumber(m[4]) or 0) + jump),
  'outbox', string.format('%.0f', (tonumber(m[5]) or 0) + jump),
  'virtual', virtual and '1' or '0',
  'partitions', partitions,
  'min_reader', min_reader,
  'min_writer', min_writer,
}
redis.call('HSET', T .. 'meta', unpack(fields))
return { now, { { 'OK', gen + 1, 1 } }, {} }
