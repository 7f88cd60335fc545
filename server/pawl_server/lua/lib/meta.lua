--!include clock
-- The partition's counters and settings: read once per script, written once with the rest.

local META = {}
-- Gaps in `seen` above this are no passing of watched time.
local GAP_MS = 2000

-- Engine time never goes back by less than that: what became ready first stays first.
local function meta_forward(now)
  if now < META.seen and META.seen - now <= GAP_MS and not META.virtual then
    return META.seen
  end
  return now
end

-- Engine time now.
local function meta_load(now_ms)
  local m =
    redis.call('HMGET', T .. 'meta', 'fence', 'incarnation', 'gen', 'shift', 'virtual', 'seen', 'hold', 'watch', 'feed', 'timed')
  META.fence = tonumber(m[1]) or 0
  META.incarnation = tonumber(m[2]) or 0
  META.gen = tonumber(m[3]) or 0
  META.shift = tonumber(m[4]) or 0
  META.virtual = m[5] == '1'
  META.seen = tonumber(m[6]) or 0
  META.hold = tonumber(m[7]) or 0
  META.watch = tonumber(m[8]) or 0
  META.feed = m[9] or '0-0'
  META.timed = m[10] or ''
  META.now = meta_forward(clock_now(META.virtual, META.shift, now_ms))
  return META.now
end

local function meta_fence()
  META.fence = META.fence + 1
  META.fence_used = true
  return META.fence
end

local function meta_incarnation()
  META.incarnation = META.incarnation + 1
  META.incarnation_used = true
  return META.incarnation
end
