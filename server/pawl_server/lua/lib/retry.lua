--!include lease notes
-- What happens after an attempt that did not complete.

local MAX_LOST = 10
local MAX_DELIVERIES = 10

local function backoff_ms(settings, failures)
  local delay = settings[BACKOFF_INITIAL_MS] * settings[BACKOFF_FACTOR] ^ (failures - 1)
  return math.floor(math.min(delay, settings[BACKOFF_MAX_MS]))
end

local function max_attempts(u)
  if has_bit(u.r[FLAGS], 16) and unit_birth(u)[5] > 0 then
    return unit_birth(u)[5]
  end
  return type_load(unit_type(u))[MAX_ATTEMPTS]
end

-- Stores why the attempt failed: `<turn>.f` is (version, attempt, engine ms, reason, message, details, final, truncated).
local function failure_save(u, now, reason, message, details, final, truncated)
  local r = u.r
  unit_set(u, r[HEAD] .. '.f', cmsgpack.pack({ 1, r[ATTEMPT], now, reason, message, details, final, truncated }))
end

-- The turn fails for good and blocks its inbox.
local function attempt_exhausted(u, now, server, reason)
  transition(u, FAILED)
  ledger_add(u, TURN_FAILED, now, u.r[HEAD], FAILED, reason)
  notify_awaiting(u, u.r[HEAD], server)
  make_ready(u, now, server)
end

-- Starts over after `delay` ms.
local function attempt_again(u, now, server, delay)
  if delay > 0 then
    transition(u, BACKOFF)
    u.r[DEADLINE] = now + delay
  else
    transition(u, QUEUED)
  end
  make_ready(u, now, server)
end
