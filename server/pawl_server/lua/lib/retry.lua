--!include lease notes ending
-- What happens after an attempt that did not complete.

local MAX_LOST = 10
local MAX_DELIVERIES = 10

-- The delay after a failure. A retry grants as many attempts as had failed: only those of its round count.
local function backoff_ms(u)
  local r, settings = u.r, type_load(unit_type(u))
  local delay = settings[BACKOFF_INITIAL_MS] * settings[BACKOFF_FACTOR] ^ (r[FAILURES] - r[EXTRA] - 1)
  return math.floor(math.min(delay, settings[BACKOFF_MAX_MS]))
end

-- Attempts of one round; retries grant more of them.
local function round_attempts(u)
  if has_bit(u.r[FLAGS], 16) and unit_birth(u)[5] > 0 then
    return unit_birth(u)[5]
  end
  return type_load(unit_type(u))[MAX_ATTEMPTS]
end

local function max_attempts(u)
  return round_attempts(u) + u.r[EXTRA]
end

-- Stores why the attempt failed: `<turn>.f` is (version, attempt, engine ms, reason, message, details, final, truncated).
local function failure_save(u, now, reason, message, details, final, truncated)
  local r = u.r
  unit_set(u, r[HEAD] .. '.f', cmsgpack.pack({ 1, r[ATTEMPT], now, reason, message, details, final, truncated }))
end

-- The state of a turn that fails for good, by the policy of its type.
local function exhausted_state(u)
  local policy = type_load(unit_type(u))[ON_EXHAUSTED]
  if policy == 2 then
    return SKIPPED
  elseif policy == 3 and u.r[PARKED_TURNS] < MAX_PARKED then
    return PARKED
  end
  return FAILED
end

local BY_POLICY = 1 -- in place of a comment

-- The turn fails for good: it blocks its inbox, unless the policy says otherwise.
local function attempt_exhausted(u, now, server, reason)
  local state = exhausted_state(u)
  transition(u, FAILED)
  ledger_add(u, TURN_FAILED, now, u.r[HEAD], FAILED, reason)
  if state == FAILED then
    unit_mark('failed', unit_member(u), 0)
    notify_awaiting(u, u.r[HEAD], server)
    make_ready(u, now, server)
  elseif state == PARKED then
    park_message(u, now)
    head_end(u, now, server, PARKED, TURN_PARKED, BY_POLICY)
  else
    head_end(u, now, server, SKIPPED, TURN_SKIPPED, BY_POLICY)
  end
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
