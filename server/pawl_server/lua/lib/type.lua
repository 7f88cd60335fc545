--!include meta
-- Settings of a workflow type: field `p` of `type:<type>`, a msgpack array; -1 stands for the default.

local LEASE_MS = 3
local MAX_ATTEMPTS = 4
local BACKOFF_INITIAL_MS = 5
local BACKOFF_MAX_MS = 6
local BACKOFF_FACTOR = 7
local ATTEMPT_TIMEOUT_MS = 8
local MIN_TURNS = 9
local MAX_AGE_MS = 10
local MAX_TURNS = 11
local MAX_BYTES = 12
local ON_EXHAUSTED = 13 -- 1 block, 2 skip, 3 park
local JITTER = 14
local MAX_ELAPSED_MS = 15 -- 0 for no limit
local FINAL_REASONS = 16 -- each between zero bytes
local QUEUE_TIMEOUT_MS = 17 -- 0 for none
local TOTAL_TIMEOUT_MS = 18 -- 0 for none
local LAST_SETTING = 18
-- Where MAX_AGE_MS was raised: engine ms and the age before alternately, both rising; turns that finished earlier keep it.
local CAPS = 19
-- Elements 1 and 2 are the format version and the time of the last change.
local DEFAULTS = { 1, 0, 60000, 3, 1000, 60000, 2, 3600000, 256, 86400000, 2000, 4194304, 1, 0, 0, '', 0, 0 }
local TYPES = {}

local function type_load(name)
  local settings = TYPES[name]
  if settings then
    return settings
  end
  local raw = redis.call('HGET', T .. 'type:' .. name, 'p')
  local ok
  if raw then
    ok, settings = pcall(cmsgpack.unpack, raw)
  end
  if ok and type(settings) == 'table' then
    for i = LEASE_MS, LAST_SETTING do
      if settings[i] == nil or settings[i] == -1 then
        settings[i] = DEFAULTS[i]
      end
    end
  else
    settings = DEFAULTS
  end
  TYPES[name] = settings
  return settings
end

-- The settings of a type that has a queue timeout or a total timeout; nil for any other, of which nothing is read. Field `timed`
-- of `meta` names them, between commas.
local function type_timed(name)
  return META.timed ~= '' and string.find(META.timed, ',' .. name .. ',', 1, true) and type_load(name) or nil
end
