--- sweep: walks a part of the instances with unfinished turns, gives back lost wake-ups and orphans leases of dead servers.
-- @keyspace meta i e ready types due busy waiting ch
-- @arg   now_ms    int  engine time in virtual-time namespaces
-- @arg   server    str  run id of the caller
-- @arg   cursor    str  "0" to begin, then what the last call answered, until that is "0"
-- @arg   limit     int  instances to look at, 1 to 1,000; Redis may give somewhat more
-- @arg   dead      str  runs of servers that are gone, comma-separated
-- @arg   grace_ms  int  time left to their leases
-- @from  BACKOFF
-- @to    QUEUED
-- @reply OK(cursor str, scanned int, repaired int, orphaned int)
-- @oom   allow
-- @spec  R-SWEEP-1, R-SWEEP-2
--!include orphan settle commit

local now = meta_load(now_ms)
local page = redis.call('SSCAN', T .. 'busy', cursor, 'COUNT', limit)
local repaired, orphaned = 0, 0

-- The wake-up an unfinished head must have; true if it was missing and is given back.
local function repair(u)
  local r = u.r
  if has_bit(r[FLAGS], 1) or has_bit(r[FLAGS], 2) then
    return false
  elseif r[STATE] == QUEUED then
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
  elseif r[STATE] == RUNNING or r[STATE] == BACKOFF then
    local member = (r[STATE] == RUNNING and 'lease:' or 'backoff:') .. u.id
    if DUE[member] == nil and not redis.call('ZSCORE', T .. 'due', member) then
      DUE[member] = r[DEADLINE]
      return true
    end
  end
  return false
end

for i = 1, #page[2] do
  local id = page[2][i]
  local u = settled_load(now, server, id)
  if not u or u.r[PENDING] == 0 then
    -- A damaged instance stays where it is found.
    if not MISSING.damaged then
      BUSY[id] = false
      repaired = repaired + 1
    end
  else
    local run = u.r[CONN] ~= 0 and string.match(u.r[CONN], '^[^.]*')
    if dead ~= '' and u.r[STATE] == RUNNING and run and string.find(',' .. dead .. ',', ',' .. run .. ',', 1, true) then
      orphan_lease(u, now, grace_ms)
      orphaned = orphaned + 1
    end
    if repair(u) then
      repaired = repaired + 1
    end
  end
end
return { now, { { 'OK', page[1], #page[2], repaired, orphaned } }, unit_commit(server) }
