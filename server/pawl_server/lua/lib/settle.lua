--!include wake ending
-- Applies what time has decided already; every script that touches an instance does this first. Never ends a lease.

local LATE_LIMIT = 16 -- messages of one kind and instance per script

-- Queued messages whose time to live is over. A head that is under way to a worker is looked at again when that is decided.
local function settle_expired(u, now, server)
  local r = u.r
  local found = redis.call('ZRANGEBYSCORE', T .. 'x:' .. u.id, '-inf', now, 'LIMIT', 0, LATE_LIMIT)
  local upcoming = redis.call('ZRANGEBYSCORE', T .. 'x:' .. u.id, '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  r[EXPIRES_AT] = #found == LATE_LIMIT and now or tonumber(upcoming[2]) or 0
  DUE['expiry:' .. u.id] = r[EXPIRES_AT] > 0 and r[EXPIRES_AT]
  for i = 1, #found do
    local turn = tonumber(found[i])
    if turn == r[HEAD] and r[STATE] == RUNNING and r[ATTEMPT] == 0 then
      r[EXPIRES_AT] = now
      DUE['expiry:' .. u.id] = math.max(now, r[DEADLINE]) + 1
    else
      unit_mark('x:' .. u.id, found[i], false)
      if turn == r[HEAD] and r[STATE] == QUEUED and r[ATTEMPT] == 0 then
        head_end(u, now, server, EXPIRED, TURN_EXPIRED)
      elseif turn > r[HEAD] and not unit_get(u, turn .. '.h') then
        queued_end(u, now, server, turn, EXPIRED, TURN_EXPIRED)
      end
    end
  end
end

-- Delayed messages that are due, in order of due time and arrival. `l:<id>` has them as 16 digits of arrival and message id,
-- `q:<message id>` is a msgpack array (version, message id, digest, blob, origin, engine ms of arrival, due, arrival digits,
-- time to live in ms or 0).
local function settle_due(u, now, server)
  local r = u.r
  local found = redis.call('ZRANGEBYSCORE', T .. 'l:' .. u.id, '-inf', now, 'LIMIT', 0, LATE_LIMIT)
  local upcoming = redis.call('ZRANGEBYSCORE', T .. 'l:' .. u.id, '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  r[DELAYED_AT] = #found == LATE_LIMIT and now or tonumber(upcoming[2]) or 0
  DUE['delayed:' .. u.id] = r[DELAYED_AT] > 0 and r[DELAYED_AT]
  for i = 1, #found do
    local message_id = string.sub(found[i], 17)
    local q = unit_table(u, 'q:' .. message_id)
    unit_mark('l:' .. u.id, found[i], false)
    r[DELAYED] = r[DELAYED] - 1
    if q then
      unit_set(u, 'q:' .. message_id, false)
      inbox_admit(u, now, server, message_id, q[3], q[4], q[5], 0, '', false, q[9])
    else
      unit_mark('damaged', 'q:' .. u.id .. ':' .. message_id, now)
    end
  end
end

-- What only few instances have to do.
local function settle_late(u, now, server)
  local r = u.r
  unit_touch(u)
  if r[STATE] == BEHIND then
    DUE['settle:' .. u.id] = false
    inbox_pass(u, now)
    make_ready(u, now, server)
  end
  if r[EXPIRES_AT] > 0 and r[EXPIRES_AT] <= now then
    settle_expired(u, now, server)
  end
  if r[DELAYED_AT] > 0 and r[DELAYED_AT] <= now then
    settle_due(u, now, server)
  end
end

local function settle(u, now, server)
  local r = u.r
  local timed = TIMED[r[STATE]]
  if timed and r[DEADLINE] <= now then
    DUE[timed .. u.id] = false
    r[DEADLINE] = 0
    transition(u, QUEUED)
    ledger_add(u, TURN_READY, now, r[HEAD], QUEUED)
    make_ready(u, now, server)
  end
  if r[STATE] == BEHIND or r[EXPIRES_AT] > 0 and r[EXPIRES_AT] <= now or r[DELAYED_AT] > 0 and r[DELAYED_AT] <= now then
    settle_late(u, now, server)
  end
end

local function settled_load(now, server, id, ...)
  local u = unit_load(id, ...)
  if u and not u.settled then
    u.settled = true
    settle(u, now, server)
  end
  return u
end
