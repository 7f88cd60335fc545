--- beat: says that a server lives, watches the clock of the partition and names servers that are gone.
-- A difference of more than 500 ms between engine time and the caller's monotonic clock is a step of Redis' clock: it is
-- taken out through `shift`, which then slews back by at most 50 ms per second. It is no step if another server has taken
-- it out since, or if Redis' own clock agrees. A gap of more than 2 s in `seen` sets `hold`.
-- @keyspace meta servers
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   name        str    stable name of the server
-- @arg   address     str    address it can be reached at; may be empty
-- @arg   build       str    version
-- @arg   draining    bool   whether it is stopping
-- @arg   first       bool   first beat of this run: former runs of the same name are gone
-- @arg   expect_ms   int    engine time by the caller's monotonic clock since its last beat; 0 if unknown
-- @arg   shift_seen  int    `shift` that expectation rests on
-- @arg   swept       str    runs whose leases the caller has orphaned, comma-separated
-- @reply OK(gen int, shift int, marked bool, stepped int, gap_ms int, dead list)
-- @oom   allow
-- @writes direct
-- @spec  R-CLOCK-1, R-CLOCK-2, R-CLOCK-3, R-SERVER-1
--!include meta

local STEP_MS = 500
local DEAD_MS = 3000
local FORGET_MS = 3600000

local now = meta_load(now_ms)
local stored = redis.call('HGETALL', T .. 'servers')

local shift, stepped = META.shift, 0
if not META.virtual then
  now = clock_now(false, shift, now_ms)
  local off = now - expect_ms
  local jump = off + shift - shift_seen
  if expect_ms > 0 and math.abs(off) > STEP_MS and math.abs(jump) > STEP_MS then
    shift, stepped = shift + off, off
    now = expect_ms
  elseif shift ~= 0 and META.seen > 0 then
    local back = math.min(math.abs(shift), math.floor(math.max(0, math.min(now - META.seen, 1000)) / 20))
    shift = shift > 0 and shift - back or shift + back
  end
  now = meta_forward(now)
end
local gap = META.seen > 0 and now - META.seen or 0
local hold = META.hold
if math.abs(gap) > GAP_MS then
  hold = now
end

-- A server record: version, name, address, build, engine ms of the last beat, draining, orphaned.
local change, forget, dead, marked = {}, {}, {}, 0
for i = 1, #stored, 2 do
  local run, s = stored[i], cmsgpack.unpack(stored[i + 1])
  if run == server then
    marked = s[7]
  else
    local silent = now - s[5] > DEAD_MS and now - hold > DEAD_MS
    local is_swept = string.find(',' .. swept .. ',', ',' .. run .. ',', 1, true)
    if s[7] == 0 and is_swept then
      s[7] = 1
      change[#change + 1] = run
      change[#change + 1] = cmsgpack.pack(s)
    elseif s[7] == 0 and (silent or (first and s[2] == name)) then
      dead[#dead + 1] = run
    elseif s[7] == 1 and now - s[5] > FORGET_MS then
      forget[#forget + 1] = run
    end
  end
end
change[#change + 1] = server
change[#change + 1] = cmsgpack.pack({ 1, name, address, build, now, draining and 1 or 0, 0 })
local fields = { 'seen', now, 'hold', hold, 'shift', shift }

redis.call('HSET', T .. 'meta', unpack(fields))
redis.call('HSET', T .. 'servers', unpack(change))
if #forget > 0 then
  redis.call('HDEL', T .. 'servers', unpack(forget))
end
return { now, { { 'OK', META.gen, shift, marked, stepped, gap, dead } }, {} }
