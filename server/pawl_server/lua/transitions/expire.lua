--- expire: applies what is due: leases that ran out, delays that are over, messages to admit or to end, trimming, deletion.
-- Entries are removed only here, by the script that applies them. A stale entry is a counted no-op. While the clock was not
-- watched, and for a while after, no lease ends: live holders renew first.
-- @keyspace meta i e feed type ids tag key l x parked failed paused damaged ready types due busy waiting ch
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   server  str  run id of the caller
-- @arg   limit   int  entries to look at, 1 to 256
-- @from  RUNNING, FAILED, BACKOFF, SLEEPING, WAITING, DEFERRED, QUEUED
-- @to    QUEUED, BACKOFF, FAILED, SKIPPED, PARKED, EXPIRED
-- @from  CANCELLING
-- @to    CANCELLED
-- @reply FIRED(kind str, id str, inc int, turn int, fence int, conn str, outcome str, how str) | STALE(kind str, id str) | HELD(id str) | NEXT(due_ms int)
-- @emits ATTEMPT_EXPIRED, ATTEMPT_LOST, TURN_FAILED, TURN_READY, TURN_EXPIRED, TURN_ADMITTED, TURN_SKIPPED, TURN_PARKED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-EXPIRE-1, R-EXPIRE-2, R-EXPIRE-3, R-EXPIRE-4, R-EXPIRE-5, R-DELAY-1, R-TTL-1, R-TTL-2, R-POLICY-1, R-SETTLE-2, R-DELETE-1, R-EVENT-6, R-CANCEL-8
--!include expire history buried commit

-- Timers of an instance that can't be read are looked at again after this time.
local DAMAGED_MS = 60000
-- Turns that one script trims: with the next one it goes on at once.
local TRIM_LIMIT = 1024

-- What settle does for an entry of these kinds: the outcome that is reported.
local SETTLED = { backoff = 'ready', sleep = 'ready', wait = 'ready', defer = 'ready', delayed = 'admitted', expiry = 'expired', settle = 'passed', operation = 'expired', cancel = 'cancelled', total = 'failed' }

-- When an entry that came too early is really due; false for never.
local function expire_again(u, kind)
  local r = u.r
  if kind == 'delayed' then
    return r[DELAYED_AT] > 0 and r[DELAYED_AT]
  elseif kind == 'expiry' then
    return r[EXPIRES_AT] > 0 and r[EXPIRES_AT]
  elseif kind == 'operation' then
    return r[OP_AT] > 0 and r[OP_AT]
  elseif kind == 'cancel' then
    return r[CANCEL_AT] > 0 and r[CANCEL_AT]
  elseif kind == 'total' then
    return r[TOTAL_AT] > 0 and r[TOTAL_AT]
  end
  return TIMED[r[STATE]] == kind .. ':' and not has_bit(r[FLAGS], 1) and r[DEADLINE] > 0 and r[DEADLINE]
end

local now = meta_load(now_ms)
local entries = redis.call('ZRANGEBYSCORE', T .. 'due', '-inf', now, 'LIMIT', 0, limit)
local replies, trims = {}, TRIM_LIMIT
for i = 1, #entries do
  local kind, id = string.match(entries[i], '^(%a*):?(.*)$')
  local u = settled_load(now, server, id)
  local reply
  if not u and kind == 'delete' and MISSING.deleting then
    reply = { 'FIRED', kind, id, UNITS[id].r[INC], 0, 0, '', bury_more(UNITS[id], now), '' }
  elseif not u then
    DUE[entries[i]] = MISSING.damaged and now + DAMAGED_MS
    if MISSING.damaged then
      unit_mark('damaged', 'i:' .. id, now)
    end
    reply = { 'STALE', kind, id }
  elseif kind == 'lease' then
    reply = expire_lease(u, now, server)
  elseif SETTLED[kind] then
    if DUE[entries[i]] == nil then
      DUE[entries[i]] = expire_again(u, kind)
    end
    local fired = u.fired and u.fired[kind .. ':']
    reply = fired and { 'FIRED', kind, id, u.r[INC], u.r[HEAD], 0, '', SETTLED[kind], '' } or { 'STALE', kind, id }
  elseif kind == 'gc' then
    local trimmed = history_trim(u, now, math.min(GC_LIMIT, math.floor(trims / 2)))
    trims = trims - trimmed
    history_arm(u, now, true)
    ledger_trim(u, now)
    DUE[entries[i]] = u.r[GC_AT] > 0 and u.r[GC_AT]
    reply = { 'FIRED', kind, id, u.r[INC], u.r[HEAD], 0, '', tostring(trimmed), '' }
  else
    DUE[entries[i]] = false
    reply = { 'STALE', kind, id }
  end
  replies[#replies + 1] = reply
end
local upcoming = redis.call('ZRANGEBYSCORE', T .. 'due', #entries == limit and '-inf' or '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local next_ms = tonumber(upcoming[2]) or 0
for _, at in pairs(DUE) do
  if at and (next_ms == 0 or at < next_ms) then
    next_ms = at
  end
end
replies[#replies + 1] = { 'NEXT', next_ms }
return { now, replies, unit_commit(server) }
