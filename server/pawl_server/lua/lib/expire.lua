--!include lease retry overtime
-- The end of a lease by time.

local HOLD_MAX_MS = 10000

-- Until when no lease of this instance may end, because the clock was not watched; 0 if it may.
local function expire_held(u, now)
  if META.virtual then
    return 0
  end
  if math.abs(now - META.seen) > GAP_MS then
    return now + 1000
  end
  local until_ms = META.hold + math.min(lease_ms(u), HOLD_MAX_MS)
  return now < until_ms and until_ms or 0
end

-- An attempt that ran out of time, or whose turn nobody received too often. `unseen`: in a step that must not be repeated
-- unseen.
local function expire_attempt(u, now, server, reason, unseen)
  local r = u.r
  local exhausted = attempt_failed(u, now, reason, 0)
  failure_save(u, now, reason, '', '', 0, 0)
  if unseen then
    ledger_add(u, ATTEMPT_EXPIRED, now, r[HEAD], UNCERTAIN, reason)
    attempt_uncertain(u, now)
    return 'uncertain'
  elseif exhausted then
    ledger_add(u, ATTEMPT_EXPIRED, now, r[HEAD], FAILED, reason)
    attempt_exhausted(u, now, server, reason)
    return 'failed'
  end
  ledger_add(u, ATTEMPT_EXPIRED, now, r[HEAD], QUEUED, reason)
  attempt_again(u, now, server, 0)
  return 'expired'
end

local function expire_lost(u, now, server, unseen)
  local r = u.r
  r[LOST] = r[LOST] + 1
  failure_save(u, now, 'WORKER_LOST', '', '', 0, 0)
  if unseen then
    ledger_add(u, ATTEMPT_LOST, now, r[HEAD], UNCERTAIN, 'WORKER_LOST')
    attempt_uncertain(u, now)
    return 'uncertain'
  elseif r[LOST] >= MAX_LOST + r[LOST_EXTRA] then
    ledger_add(u, ATTEMPT_LOST, now, r[HEAD], FAILED, 'WORKER_LOST')
    attempt_exhausted(u, now, server, 'WORKER_LOST')
    return 'failed'
  end
  ledger_add(u, ATTEMPT_LOST, now, r[HEAD], QUEUED, 'WORKER_LOST')
  attempt_again(u, now, server, 0)
  return 'lost'
end

local function expire_unreceived(u, now, server)
  local r = u.r
  r[DELIVERIES] = r[DELIVERIES] + 1
  if r[DELIVERIES] > MAX_DELIVERIES then
    r[ATTEMPT] = r[FAILURES] + r[LOST] + 1
    return expire_attempt(u, now, server, 'UNDELIVERABLE', false)
  end
  attempt_again(u, now, server, 0)
  return 'returned'
end

-- One due lease entry: the reply.
local function expire_lease(u, now, server)
  local r = u.r
  local member = 'lease:' .. u.id
  if not HELD[r[STATE]] or r[DEADLINE] > now then
    DUE[member] = HELD[r[STATE]] and r[DEADLINE] or false
    return { 'STALE', 'lease', u.id }
  end
  local held = expire_held(u, now)
  if held > 0 then
    DUE[member] = held
    return { 'HELD', u.id }
  end
  local turn, fence, conn, bits = r[HEAD], r[FENCE], r[CONN], r[BITS]
  if r[STATE] == CANCELLING then
    head_cancel(u, now, server)
    local how = ENDINGS[HOW_CANCELLED]
    return { 'FIRED', 'lease', u.id, r[INC], turn, fence, conn == 0 and '' or conn, how, how }
  end
  local unseen = r[OP] == OP_UNSEEN
  local timed_out = now >= r[LEASED] + type_load(unit_type(u))[ATTEMPT_TIMEOUT_MS]
  local how = not has_bit(bits, 1) and HOW_RETURNED or has_bit(bits, 2) and HOW_LOST or HOW_EXPIRED
  lease_end(u, how)
  local outcome
  if how == HOW_RETURNED then
    outcome = expire_unreceived(u, now, server)
  elseif how == HOW_LOST then
    outcome = expire_lost(u, now, server, unseen)
  else
    outcome = expire_attempt(u, now, server, timed_out and 'ATTEMPT_TIMEOUT' or 'ATTEMPT_EXPIRED', unseen)
  end
  tell_holder(u, conn, turn, fence, ENDINGS[how], server)
  return { 'FIRED', 'lease', u.id, r[INC], turn, fence, conn == 0 and '' or conn, outcome, ENDINGS[how] }
end
