--!include ready states operation
-- The one path to a reason to wake: whatever leaves an unfinished head with a new state calls make_ready. An instance
-- enters `busy` with its first unfinished turn and leaves it with its last.

-- Kinds of `due` entry of heads that go on at DEADLINE; 0 is never, for a wait without end.
local TIMED = { [SLEEPING] = 'sleep:', [WAITING] = 'wait:', [BACKOFF] = 'backoff:', [DEFERRED] = 'defer:' }

-- States of a head that is leased.
local HELD = { [RUNNING] = true, [CANCELLING] = true }

local function make_ready(u, now, server)
  local r = u.r
  unit_touch(u)
  if r[PENDING] == 0 then
    unit_mark('busy', unit_member(u), false)
    if r[EXPIRES_AT] > 0 then
      r[EXPIRES_AT] = 0
      DUE['expiry:' .. u.id] = false
    end
    return
  end
  if has_bit(r[FLAGS], 1) then
    return
  end
  if r[STATE] == QUEUED then
    ready_add(u, now, server)
  elseif TIMED[r[STATE]] and r[DEADLINE] > 0 then
    DUE[TIMED[r[STATE]] .. u.id] = r[DEADLINE]
  end
end

-- Takes back the reason to wake that make_ready gave, or a lease.
local function make_unready(u)
  local r = u.r
  local state = r[STATE]
  if state == QUEUED then
    ready_open(u.tv).change[u.id] = false
  elseif HELD[state] then
    DUE['lease:' .. u.id] = false
    operation_rest(u)
    if r[CANCEL_AT] > 0 then
      DUE['cancel:' .. u.id] = false
    end
  elseif state == FAILED or state == UNCERTAIN then
    unit_mark('failed', unit_member(u), false)
  elseif TIMED[state] then
    DUE[TIMED[state] .. u.id] = false
  end
end

-- The one writer of the head's state.
local function transition(u, to)
  local r = u.r
  if not MOVES[r[STATE] * 16 + to] then
    error('no move from ' .. r[STATE] .. ' to ' .. to)
  end
  if r[STATE] == WAITING then
    unit_set(u, 'w', false)
  end
  r[STATE] = to
  if r[TOTAL_AT] > 0 and (to == FAILED or to == UNCERTAIN or to == CANCELLING) then
    -- What somebody decides about, or has decided about, is no longer a matter of time.
    r[TOTAL_AT] = 0
    DUE['total:' .. u.id] = false
  end
  unit_touch(u)
end
