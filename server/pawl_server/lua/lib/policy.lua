--!include unit type
-- Retry policies: a msgpack array (initial ms, longest ms, factor, jitter, ms from the claim of the first attempt that failed,
-- failure reasons that are final, each between zero bytes, attempts of a step); -1 stands for what the level below says: an instance's
-- over its type's, a step's over the defaults.

local P_INITIAL_MS = 1
local P_MAX_MS = 2
local P_FACTOR = 3
local P_JITTER = 4
local P_ELAPSED_MS = 5 -- 0 for no limit
local P_FINAL = 6
local P_ATTEMPTS = 7

local function policy_over(below, packed)
  local ok, p
  if packed and packed ~= '' then
    ok, p = pcall(cmsgpack.unpack, packed)
  end
  if not ok or type(p) ~= 'table' then
    return below
  end
  for i = P_INITIAL_MS, P_ATTEMPTS do
    if p[i] == nil or p[i] == -1 then
      p[i] = below[i]
    end
  end
  return p
end

local function policy_of_type(settings)
  return {
    settings[BACKOFF_INITIAL_MS],
    settings[BACKOFF_MAX_MS],
    settings[BACKOFF_FACTOR],
    settings[JITTER],
    settings[MAX_ELAPSED_MS],
    settings[FINAL_REASONS],
    settings[MAX_ATTEMPTS],
  }
end

-- Attempts of one round; retries grant more of them.
local function round_attempts(u)
  if has_bit(u.r[FLAGS], 16) and unit_birth(u)[5] > 0 then
    return unit_birth(u)[5]
  end
  return type_load(unit_type(u))[MAX_ATTEMPTS]
end

-- The policy of the turns of an instance.
local function policy_load(u)
  local policy = policy_of_type(type_load(unit_type(u)))
  if has_bit(u.r[FLAGS], 16) then
    policy = policy_over(policy, unit_birth(u)[10])
  end
  return policy
end

-- A number from 0 to 1 that looks random and is the same whenever the script is run again for the same lease.
local function policy_draw(u)
  return u.r[FENCE] * 0.6180339887498949 % 1
end

-- The delay after so many failures in a row.
local function policy_delay(u, policy, failures)
  local delay = math.min(policy[P_INITIAL_MS] * policy[P_FACTOR] ^ (failures - 1), policy[P_MAX_MS])
  return math.floor(delay * (1 - policy[P_JITTER] * policy_draw(u)))
end

-- Whether another attempt after `delay` is out of the question, however many are left.
local function policy_ends(u, policy, now, reason, delay)
  local elapsed = policy[P_ELAPSED_MS]
  return string.find(policy[P_FINAL], '\0' .. reason .. '\0', 1, true) ~= nil
    or elapsed > 0 and now + delay > u.r[FAILING_MS] + elapsed
end
