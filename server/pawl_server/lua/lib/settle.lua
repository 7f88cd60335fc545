--!include wake
-- Applies what time has decided already; every script that touches an instance does this first. Never ends a lease.

local function settle(u, now, server)
  local r = u.r
  if r[STATE] == BACKOFF and r[DEADLINE] <= now then
    DUE['backoff:' .. u.id] = false
    r[DEADLINE] = 0
    transition(u, QUEUED)
    make_ready(u, now, server)
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
