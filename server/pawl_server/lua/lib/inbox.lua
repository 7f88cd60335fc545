--!include wake ledger type
-- The inbox of an instance. `<turn>.m` is a msgpack array (version, message id, digest, blob, origin, engine ms, turn it
-- comes from, message id of that, and where needed: 1 if redriven from there rather than continued, engine ms of expiry);
-- the blob is empty if the message was discarded;
-- `d:<message id>` is the turn number, or "q" while delayed.

local PASS_TOMBSTONES = 16

-- The head is behind tombstones and more may follow; settle goes on with it.
local BEHIND = CANCELLED

-- The total deadline of a turn that has become the head, or that gets its time anew, by the settings of now.
local function inbox_total(u, since)
  local r = u.r
  local timed = r[STATE] == QUEUED and type_timed(unit_type(u))
  if timed and timed[TOTAL_TIMEOUT_MS] > 0 then
    since = since or (unit_table(u, r[HEAD] .. '.m') or { 1, '', '', '', '', META.now })[6]
    r[TOTAL_AT] = since + timed[TOTAL_TIMEOUT_MS]
    DUE['total:' .. u.id] = r[TOTAL_AT]
    unit_touch(u)
  end
end

-- Of a message that was sent, the queue timeout of its type is a time to live as well.
local function inbox_ttl(u, ttl_ms)
  local timed = type_timed(unit_type(u))
  local most = timed and timed[QUEUE_TIMEOUT_MS] or 0
  return most > 0 and (ttl_ms == 0 or most < ttl_ms) and most or ttl_ms
end

local function inbox_admit(u, now, server, message_id, digest, blob, origin, from_turn, from_id, redriven, ttl_ms)
  local r = u.r
  local turn = r[TAIL] + 1
  r[TAIL] = turn
  r[PENDING] = r[PENDING] + 1
  local m = { 1, message_id, digest, blob, origin, now, from_turn, from_id }
  if from_turn == 0 then
    ttl_ms = inbox_ttl(u, ttl_ms)
  end
  if redriven or ttl_ms and ttl_ms > 0 then
    m[9], m[10] = redriven and 1 or 0, 0
  end
  if ttl_ms and ttl_ms > 0 then
    m[10] = now + ttl_ms
    unit_mark('x:' .. u.id, tostring(turn), m[10])
    if r[EXPIRES_AT] == 0 or m[10] < r[EXPIRES_AT] then
      r[EXPIRES_AT] = m[10]
      DUE['expiry:' .. u.id] = m[10]
    end
  end
  unit_set(u, turn .. '.m', cmsgpack.pack(m))
  unit_set(u, 'd:' .. message_id, tostring(turn))
  if turn == r[HEAD] then
    r[STATE] = QUEUED
    inbox_total(u, now)
    unit_mark('busy', unit_member(u), 0)
    make_ready(u, now, server)
  end
  ledger_add(u, TURN_ADMITTED, now, turn, QUEUED, from_turn > 0 and (redriven and 'redrive' or 'continuation') or nil)
  return turn
end

-- What has ended or begun expires no more.
local function inbox_unexpire(u, turn)
  if u.r[EXPIRES_AT] > 0 then
    unit_mark('x:' .. u.id, tostring(turn), false)
  end
end

-- Moves the head past tombstones, some at a time; `u.passed` says so.
--!rare
local function inbox_pass(u, now)
  local r = u.r
  if r[STATE] == BEHIND then
    DUE['settle:' .. u.id] = false
  end
  r[STATE] = 0
  u.passed = true
  if r[PENDING] == 0 then
    r[HEAD] = r[TAIL] + 1
    return
  end
  r[STATE] = QUEUED
  local last = r[HEAD] + PASS_TOMBSTONES
  while r[TAIL] - r[HEAD] >= r[PENDING] and unit_get(u, r[HEAD] .. '.h') do
    if r[HEAD] == last then
      r[STATE] = BEHIND
      DUE['settle:' .. u.id] = now
      return
    end
    r[HEAD] = r[HEAD] + 1
  end
  inbox_total(u)
end

-- Moves the head past a finished turn.
local function inbox_advance(u, now, server)
  local r = u.r
  inbox_unexpire(u, r[HEAD])
  r[HEAD] = r[HEAD] + 1
  r[PENDING] = r[PENDING] - 1
  if r[TOTAL_AT] > 0 then
    DUE['total:' .. u.id] = false
  end
  for i = STATE, LAST_OF_HEAD do
    r[i] = 0
  end
  if r[TAIL] - r[HEAD] >= r[PENDING] then
    inbox_pass(u, now)
  elseif r[PENDING] > 0 then
    r[STATE] = QUEUED
    inbox_total(u)
  end
  make_ready(u, now, server)
end
