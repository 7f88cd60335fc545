--!include unit
-- The registered step of the head: `<turn>.o` is a msgpack array of format version and the elements below. Blobs that are
-- not there are empty. It stays when its attempt ends, for views and for the next attempt.

local O_KEY = 2
local O_KIND = 3
local O_POSITION = 4
local O_ATTEMPT = 5
local O_START = 6 -- engine ms
local O_DEADLINE = 7 -- engine ms
local O_HEARTBEAT_MS = 8 -- longest time without a report; 0 for any
local O_HEARTBEAT_AT = 9 -- when the next report must have come; engine ms, 0 for never
local O_SEQUENCE = 10 -- of the newest report; 0 before the first
local O_DIGEST = 11 -- of the newest report
local O_REPORTED = 12 -- engine ms of the newest report
local O_PROGRESS = 13 -- msgpack array (phase, done, total or -1, unit), packed by itself; or empty
local O_DETAILS = 14 -- blob
local O_RESUME = 15 -- blob
local O_ON_RESTART = 16 -- as in pawl.v1.OnRestart

-- Values of OP.
local OP_LEFT = 1
local OP_RUNS = 2
local OP_UNSEEN = 3

-- The registered step, or nil if there is none or it can't be read.
local function operation_get(u)
  return unit_table(u, u.r[HEAD] .. '.o')
end

-- Keeps the step, and the time at which it is out of time.
local function operation_keep(u, o)
  local r = u.r
  unit_set(u, r[HEAD] .. '.o', cmsgpack.pack(o))
  local at = o[O_DEADLINE]
  if o[O_HEARTBEAT_AT] > 0 then
    at = math.min(at, o[O_HEARTBEAT_AT])
  end
  if at ~= r[OP_AT] then
    r[OP_AT] = at
    DUE['operation:' .. u.id] = at
  end
  unit_touch(u)
end

-- The step runs no more.
--!rare
local function operation_rest(u)
  local r = u.r
  if r[OP] > OP_LEFT then
    r[OP], r[OP_AT] = OP_LEFT, 0
    DUE['operation:' .. u.id] = false
  end
end

-- The step is saved, or its turn is over.
--!rare
local function operation_drop(u)
  local r = u.r
  operation_rest(u)
  r[OP] = 0
  unit_set(u, r[HEAD] .. '.o', false)
  unit_touch(u)
end

-- Takes in a report; nil, or the refusal. Only a new one changes anything.
local function operation_report(u, now, o, sequence, digest, progress, details, resume)
  if sequence < o[O_SEQUENCE] then
    return nil
  elseif sequence == o[O_SEQUENCE] then
    return digest ~= o[O_DIGEST] and { 'BODY_CONFLICT' } or nil
  end
  o[O_SEQUENCE], o[O_DIGEST], o[O_REPORTED] = sequence, digest, now
  o[O_PROGRESS], o[O_DETAILS] = progress, details
  if resume ~= '' then
    o[O_RESUME] = resume
  end
  if o[O_HEARTBEAT_MS] > 0 then
    o[O_HEARTBEAT_AT] = now + o[O_HEARTBEAT_MS]
  end
  operation_keep(u, o)
  return nil
end
