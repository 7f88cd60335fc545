--!include ready states
-- The one path to a reason to wake: whatever leaves an unfinished head with a new state calls make_ready. An instance
-- enters `busy` with its first unfinished turn and leaves it with its last.

local function make_ready(u, now, server)
  local r = u.r
  unit_touch(u)
  if r[PENDING] == 0 then
    BUSY[u.id] = false
    return
  end
  if has_bit(r[FLAGS], 1) or has_bit(r[FLAGS], 2) then
    return
  end
  if r[STATE] == QUEUED then
    ready_add(u, now, server)
  elseif r[STATE] == BACKOFF then
    DUE['backoff:' .. u.id] = r[DEADLINE]
  end
end

-- The one writer of the head's state.
local function transition(u, to)
  local r = u.r
  if not MOVES[r[STATE] * 16 + to] then
    error('no move from ' .. r[STATE] .. ' to ' .. to)
  end
  r[STATE] = to
  unit_touch(u)
end
