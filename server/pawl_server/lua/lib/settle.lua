--!include wake ending overtime wait
-- Applies what time has decided already; every script that touches an instance does this first. It ends a lease only where
-- the registered step or the turn is out of time, or where the turn is to be cancelled and the grace is over.
-- `u.fired` names the kinds of entry of `due` that had something to do.

local LATE_LIMIT = 16 -- messages of one kind and instance at a time

local function settle_fired(u, kind)
  u.fired = u.fired or {}
  u.fired[kind] = true
end

-- Takes the next members of a sorted set of the instance whose time has come, each with that time; and the time of the first
-- after them, 0 if there is none.
local function settle_take(u, name, now)
  local from = u[name] or 0
  local stored = redis.call('ZRANGE', T .. name .. u.id, from, from + LATE_LIMIT, 'WITHSCORES')
  local found, upcoming = {}, 0
  for i = 1, #stored, 2 do
    local at = tonumber(stored[i + 1])
    if at > now or #found == LATE_LIMIT then
      upcoming = at
      break
    end
    found[#found + 1] = { stored[i], at }
  end
  u[name] = from + #found
  -- What this script adds is not stored yet.
  for _, at in pairs(MARKS[name .. u.id] or {}) do
    if at and (upcoming == 0 or at < upcoming) then
      upcoming = at
    end
  end
  return found, upcoming
end

-- Messages whose time to live is over. A head that is on its way to a worker, or given back by one, is looked at again when
-- that is over.
--!rare
local function settle_expired(u, now, server)
  local r = u.r
  local found, upcoming = settle_take(u, 'x:', now)
  r[EXPIRES_AT] = upcoming
  DUE['expiry:' .. u.id] = upcoming > 0 and upcoming
  unit_touch(u)
  for i = 1, #found do
    local turn = tonumber(found[i][1])
    local head = turn == r[HEAD] and r[STATE] ~= BEHIND
    if head and r[ATTEMPT] == 0 and r[STATE] ~= QUEUED then
      local again = math.max(now, r[DEADLINE]) + 1
      r[EXPIRES_AT] = found[i][2]
      DUE['expiry:' .. u.id] = upcoming > 0 and math.min(again, upcoming) or again
    else
      unit_mark('x:' .. u.id, found[i][1], false)
      if head and r[ATTEMPT] == 0 then
        settle_fired(u, 'expiry:')
        head_end(u, now, server, EXPIRED, TURN_EXPIRED)
      elseif turn > r[HEAD] and not unit_get(u, turn .. '.h') then
        settle_fired(u, 'expiry:')
        queued_end(u, now, server, turn, EXPIRED, TURN_EXPIRED)
      end
    end
  end
end

-- The head expires no more, as an attempt of it has begun.
local function settle_begun(u, now)
  inbox_unexpire(u, u.r[HEAD])
  if u.r[EXPIRES_AT] > 0 and u.r[EXPIRES_AT] <= now then
    settle_expired(u, now, '')
  end
end

-- Delayed messages that are due, in order of due time and arrival. `l:<id>` has them as 16 digits of arrival and message id,
-- `q:<message id>` is a msgpack array (version, message id, digest, blob, origin, engine ms of arrival, due, arrival digits,
-- time to live in ms or 0).
--!rare
local function settle_due(u, now, server)
  local r = u.r
  local found, upcoming = settle_take(u, 'l:', now)
  r[DELAYED_AT] = upcoming
  DUE['delayed:' .. u.id] = upcoming > 0 and upcoming
  unit_touch(u)
  for i = 1, #found do
    local message_id = string.sub(found[i][1], 17)
    local raw, q = unit_get(u, 'q:' .. message_id), unit_table(u, 'q:' .. message_id)
    unit_mark('l:' .. u.id, found[i][1], false)
    if q then
      settle_fired(u, 'delayed:')
      r[DELAYED] = r[DELAYED] - 1
      unit_clear(u, 'q:' .. message_id)
      inbox_admit(u, now, server, message_id, q[3], q[4], q[5], 0, '', false, q[9])
    elseif raw and raw ~= '' then
      r[DELAYED] = r[DELAYED] - 1
      unit_mark('damaged', 'q:' .. u.id .. ':' .. message_id, now)
    end
  end
  if r[DELAYED] == 0 then
    unit_mark('busy', unit_later(u), false)
  end
end

-- Delayed messages that are due come before any other message.
local function settle_before_admission(u, now, server)
  for _ = 1, u.r[DELAYED] do
    if u.r[DELAYED_AT] == 0 or u.r[DELAYED_AT] > now then
      break
    end
    settle_due(u, now, server)
  end
end

-- Heads that are out of time, some after each other where the policy lets the inbox go on. A time to live that was over before
-- comes first.
--!rare
local function settle_total(u, now, server)
  local r = u.r
  for _ = 1, LATE_LIMIT do
    if r[TOTAL_AT] == 0 or r[TOTAL_AT] > now then
      break
    elseif r[STATE] == QUEUED and r[EXPIRES_AT] > 0 and r[EXPIRES_AT] <= r[TOTAL_AT] then
      settle_expired(u, now, server)
    else
      settle_fired(u, 'total:')
      total_over(u, now)
    end
  end
end

-- A head whose time is over starts no attempt.
local function settle_before_claim(u, now, server)
  local r = u.r
  while r[STATE] == QUEUED and (r[TOTAL_AT] > 0 and r[TOTAL_AT] <= now or r[EXPIRES_AT] > 0 and r[EXPIRES_AT] <= now) do
    if r[TOTAL_AT] > 0 and r[TOTAL_AT] <= now then
      settle_total(u, now, server)
    else
      settle_expired(u, now, server)
    end
  end
end

-- What only few instances have to do.
--!rare
local function settle_late(u, now, server)
  local r = u.r
  if r[STATE] == BEHIND then
    settle_fired(u, 'settle:')
    inbox_pass(u, now)
    make_ready(u, now, server)
    history_moved(u, now)
  end
  if r[EXPIRES_AT] > 0 and r[EXPIRES_AT] <= now then
    settle_expired(u, now, server)
  end
  if r[DELAYED_AT] > 0 and r[DELAYED_AT] <= now then
    settle_due(u, now, server)
  end
end

-- What time decides about the head as such.
local function settle_head(u, now, server)
  local r = u.r
  local total = r[TOTAL_AT]
  if r[STATE] == CANCELLING then
    if r[CANCEL_AT] <= now or r[OP_AT] > 0 and r[OP_AT] <= now then
      settle_fired(u, r[CANCEL_AT] <= now and 'cancel:' or 'operation:')
      head_cancel(u, now, server)
    end
  elseif r[OP_AT] > 0 and r[OP_AT] <= now and (total == 0 or r[OP_AT] <= total) then
    settle_fired(u, 'operation:')
    operation_over(u, now, server)
  end
  local timed = TIMED[r[STATE]]
  if timed and r[DEADLINE] > 0 and r[DEADLINE] <= now and (total == 0 or r[DEADLINE] < total) then
    if r[STATE] == WAITING then
      wait_timed_out(u, now)
    end
    DUE[timed .. u.id] = false
    r[DEADLINE] = 0
    transition(u, QUEUED)
    settle_fired(u, timed)
    ledger_add(u, TURN_READY, now, r[HEAD], QUEUED)
    make_ready(u, now, server)
  end
  if total > 0 and total <= now then
    settle_total(u, now, server)
  end
end

local function settle(u, now, server)
  local r = u.r
  settle_head(u, now, server)
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
