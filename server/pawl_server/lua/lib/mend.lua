--!include settle
-- Gives back what an index has lost, by the instance's own record. Nothing is written before the commit.

-- Gives back an entry of `due`; true if it was missing.
local function mend_entry(member, at)
  if at > 0 and DUE[member] == nil and not redis.call('ZSCORE', T .. 'due', member) then
    DUE[member] = at
    return true
  end
  return false
end

-- Puts the instance back into a set that lists such as it; true if it was missing.
local function mend_mark(name, key, member, belongs, score)
  if belongs and not (MARKS[name] and MARKS[name][member]) and not redis.call('ZSCORE', key, member) then
    unit_mark(name, member, score or 0)
    return true
  end
  return false
end

-- The wake-up that an unfinished head must have; true if it was missing.
local function mend_head(u, now, server)
  local r = u.r
  if HELD[r[STATE]] then
    return mend_entry('lease:' .. u.id, r[DEADLINE])
  elseif has_bit(r[FLAGS], 1) then
    return false
  elseif TIMED[r[STATE]] then
    return mend_entry(TIMED[r[STATE]] .. u.id, r[DEADLINE])
  elseif r[STATE] ~= QUEUED then
    return false
  end
  local ready = ready_open(u.tv)
  if ready.change[u.id] ~= nil then
    return false
  end
  local since = redis.call('ZSCORE', T .. 'ready:' .. u.tv .. ':0', u.id)
  if not since then
    make_ready(u, now, server)
    return true
  elseif not redis.call('ZSCORE', T .. 'types', u.tv) then
    ready.added = math.min(ready.added or now, tonumber(since))
    return true
  end
  return false
end

-- All that an instance must be found by besides its creation; true if anything was missing.
local function mend_entries(u, now, server)
  local r = u.r
  local head = mend_head(u, now, server)
  local expiry = mend_entry('expiry:' .. u.id, r[EXPIRES_AT])
  local delayed = mend_entry('delayed:' .. u.id, r[DELAYED_AT])
  local passing = mend_entry('settle:' .. u.id, r[STATE] == BEHIND and now or 0)
  local operation = mend_entry('operation:' .. u.id, r[OP_AT])
  local total = mend_entry('total:' .. u.id, r[TOTAL_AT])
  local cancel = mend_entry('cancel:' .. u.id, r[CANCEL_AT])
  local member = unit_member(u)
  local failed = mend_mark('failed', T .. 'failed', member, r[STATE] == FAILED or r[STATE] == UNCERTAIN)
  local paused = mend_mark('paused', T .. 'paused', member, has_bit(r[FLAGS], 1))
  return head or expiry or delayed or passing or operation or total or cancel or failed or paused
end
