-- Engine time: Redis TIME with detected steps removed, ms since the epoch. A virtual-time namespace keeps its own clock, which
-- only `advance` moves; where a caller names a time, as tests of scripts do, that is the time.

-- 2027-01-15T08:00:00Z, where the clock of a virtual-time namespace begins.
local VIRTUAL_START_MS = 1800000000000

local function clock_now(virtual, shift, now_ms)
  if virtual then
    return now_ms > 0 and now_ms or tonumber(redis.call('HGET', T .. 'meta', 'now')) or VIRTUAL_START_MS
  end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000) - shift
end
