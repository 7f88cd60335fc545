--- beat: says that a server lives, watches the clock of the partition, names servers that are gone, and others that are not
-- with their addresses.
-- Callers compare Redis' clock with their monotonic clock by quick round trips and report a step, which does not depend on
-- when the report arrives: a stall is no step. It is taken out through `shift`, unless another server has done so since, and
-- `shift` slews back by at most 50 ms per second. A gap of more than 2 s in `seen` sets `hold`.
-- @keyspace meta servers
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   name        str    stable name of the server
-- @arg   address     str    address it can be reached at; may be empty
-- @arg   build       str    version
-- @arg   draining    bool   whether it is stopping
-- @arg   first       bool   first beat of this run: former runs of the same name are gone
-- @arg   step_ms     int    by how much Redis' clock has moved against the caller's monotonic clock; 0 if it has not
-- @arg   shift_seen  int    `shift` at the time that comparison began
-- @arg   swept       str    runs whose leases the caller has orphaned, comma-separated
-- @reply OK(gen int, shift int, time_ms int, marked bool, stepped int, gap_ms int, dead list, alive list)
-- @oom   allow
-- @writes direct
-- @spec  R-CLOCK-1, R-CLOCK-2, R-CLOCK-3, R-SERVER-1
--!include meta

local STEP_MS = 500
local DEAD_MS = 3000
local FORGET_MS = 3600000

local engine = meta_load(now_ms)
-- Servers live in real time, also where the clock stands still.
local now = META.virtual and now_ms == 0 and clock_now(false, 0, 0) or engine
local stored = redis.call('HGETALL', T .. 'servers')

local shift, stepped, time = META.shift, 0, now
if not META.virtual then
  time = clock_now(false, 0, now_ms)
  -- What is left of the step: another server may have taken it out already.
  local left = step_ms - (shift - shift_seen)
  if math.abs(step_ms) > STEP_MS and math.abs(left) > STEP_MS then
    shift, stepped = shift + left, left
    now = time - shift
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
local change, forget, dead, alive, marked = {}, {}, {}, {}, 0
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
    elseif s[7] == 0 and s[6] == 0 then
      alive[#alive + 1] = run
      alive[#alive + 1] = s[3]
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
return { META.virtual and engine or now, { { 'OK', META.gen, shift, time, marked, stepped, gap, dead, alive } }, {} }
