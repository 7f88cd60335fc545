--!include type notes ending policy
-- What happens after an attempt that did not complete.

local MAX_LOST = 10
local MAX_DELIVERIES = 10

-- Failures that count towards the attempts of the turn: those that no policy of a step decides about.
local function counted_failures(u)
  return u.r[FAILURES] - u.r[STEP_FAILURES]
end

local function max_attempts(u)
  return round_attempts(u) + u.r[EXTRA]
end

-- Stores why the attempt failed: `<turn>.f` is (version, attempt, engine ms, reason, message, details, final, truncated, and
-- where needed: causes, key of the step, failures in a row of it that its own policy decided about).
local function failure_save(u, now, reason, message, details, final, truncated, cause, step, row)
  local r = u.r
  local f = { 1, r[ATTEMPT], now, reason, message, details, final, truncated }
  if cause and cause ~= '' or step and step ~= '' then
    f[9], f[10], f[11] = cause or '', step or '', row or 0
  end
  unit_set(u, r[HEAD] .. '.f', cmsgpack.pack(f))
end

-- With a new round of attempts, failures in a row of a step begin anew.
local function failure_round(u)
  local name = u.r[HEAD] .. '.f'
  local f = unit_table(u, name)
  if f and f[11] and f[11] > 0 then
    f[11] = 0
    unit_set(u, name, cmsgpack.pack(f))
  end
end

-- Grants another round of attempts.
local function attempt_round(u)
  local r = u.r
  r[EXTRA] = counted_failures(u)
  r[FAILING_MS] = 0
  failure_round(u)
  r[LOST_EXTRA] = r[LOST]
  r[DELIVERIES] = 0
end

local function attempt_count(u)
  local r = u.r
  r[FAILURES] = r[FAILURES] + 1
  if r[FAILING_MS] == 0 then
    r[FAILING_MS] = r[LEASED]
  end
end

-- Counts a failed attempt. Whether it is the last one if the next would start after `delay` ms, or after the delay of the policy
-- if that is below 0; and the delay. A retry grants as many attempts as had failed: the delay counts only those of its round.
local function attempt_failed(u, now, reason, delay)
  attempt_count(u)
  local policy = policy_load(u)
  if delay < 0 then
    delay = policy_delay(u, policy, counted_failures(u) - u.r[EXTRA])
  end
  return counted_failures(u) >= max_attempts(u) or policy_ends(u, policy, now, reason, delay), delay
end

-- The same for a step with a policy of its own, and how often it has failed in a row.
local function attempt_step_failed(u, now, reason, delay, step, packed)
  local f = u.r[FAILURES] > 0 and unit_table(u, u.r[HEAD] .. '.f')
  local row = (f and f[10] == step and f[11] or 0) + 1
  attempt_count(u)
  u.r[STEP_FAILURES] = u.r[STEP_FAILURES] + 1
  local policy = policy_over(policy_of_type(DEFAULTS), packed)
  if delay < 0 then
    delay = policy_delay(u, policy, row)
  end
  return row >= policy[P_ATTEMPTS] or policy_ends(u, policy, now, reason, delay), delay, row
end

-- Whether no attempt is left.
local function attempt_none(u, now)
  local r = u.r
  return counted_failures(u) >= max_attempts(u)
    or r[LOST] >= MAX_LOST + r[LOST_EXTRA]
    or r[FAILING_MS] > 0 and policy_ends(u, policy_load(u), now, '', 0)
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
--!rare
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
