--- sweep: walks a part of the instances with unfinished turns, gives back lost wake-ups and orphans leases of dead servers.
-- @keyspace meta i e feed ready types due busy waiting ch l x damaged dead deadtime
-- @arg   now_ms    int  engine time in virtual-time namespaces
-- @arg   server    str  run id of the caller
-- @arg   cursor    str  "0" to begin, then what the last call answered, until that is "0"
-- @arg   limit     int  instances to look at, 1 to 1,000
-- @arg   dead      str  runs of servers that are gone, comma-separated
-- @arg   grace_ms  int  time left to their leases
-- @from  BACKOFF, SLEEPING, DEFERRED
-- @to    QUEUED
-- @reply OK(cursor str, scanned int, repaired int, orphaned int)
-- @emits TURN_ADMITTED, TURN_EXPIRED, TURN_READY
-- @oom   allow
-- @spec  R-SWEEP-1, R-SWEEP-2
--!include orphan settle dead commit

local now = meta_load(now_ms)
local page = redis.call('ZRANGEBYLEX', T .. 'busy', cursor == '0' and '-' or '(' .. cursor, '+', 'LIMIT', 0, limit)
local repaired, orphaned = 0, 0

-- The entries of what waits besides the head; true if one was missing and is given back.
local function repair_secondary(u)
  local r = u.r
  local wanted = { ['delayed:'] = r[DELAYED_AT], ['expiry:'] = r[EXPIRES_AT], ['settle:'] = r[STATE] == BEHIND and now or 0 }
  local found = false
  for kind, at in pairs(wanted) do
    local member = kind .. u.id
    if at > 0 and DUE[member] == nil and not redis.call('ZSCORE', T .. 'due', member) then
      DUE[member] = at
      found = true
    end
  end
  return found
end

-- The wake-up an unfinished head must have; true if it was missing and is given back.
local function repair(u)
  local r = u.r
  local repaired_kind = repair_secondary(u)
  if r[STATE] ~= RUNNING and has_bit(r[FLAGS], 1) then
    return repaired_kind
  elseif r[STATE] == QUEUED then
    local ready = ready_open(u.tv)
    if ready.change[u.id] ~= nil then
      return repaired_kind
    end
    local since = redis.call('ZSCORE', T .. 'ready:' .. u.tv .. ':0', u.id)
    if not since then
      make_ready(u, now, server)
      return true
    elseif not redis.call('ZSCORE', T .. 'types', u.tv) then
      ready.added = math.min(ready.added or now, tonumber(since))
      return true
    end
  elseif r[STATE] == RUNNING or TIMED[r[STATE]] then
    local member = (r[STATE] == RUNNING and 'lease:' or TIMED[r[STATE]]) .. u.id
    if DUE[member] == nil and not redis.call('ZSCORE', T .. 'due', member) then
      DUE[member] = r[DEADLINE]
      return true
    end
  end
  return repaired_kind
end

for i = 1, #page do
  local id = string.match(page[i], '[^:]*$')
  local u = settled_load(now, server, id)
  if not u or u.r[PENDING] == 0 or unit_member(u) ~= page[i] then
    -- A damaged instance stays where it is found.
    if not MISSING.damaged then
      unit_mark('busy', page[i], false)
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
-- Deleted instances are forgotten after a day.
local old = redis.call('ZRANGEBYSCORE', T .. 'deadtime', '-inf', now - DEAD_KEEP_MS, 'LIMIT', 0, 100)
for i = 1, #old do
  DEAD[old[i]] = false
  unit_mark('deadtime', old[i], false)
end
local after = #page == limit and page[#page] or '0'
return { now, { { 'OK', after, #page, repaired, orphaned } }, unit_commit(server) }
