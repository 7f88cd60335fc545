--- sweep: walks a part of the busy instances, gives back what indexes have lost and orphans leases of dead servers.
-- @keyspace meta i e feed type ready types due failed paused busy waiting ch l x damaged dead deadtime parked
-- @arg   now_ms    int  engine time in virtual-time namespaces
-- @arg   server    str  run id of the caller
-- @arg   cursor    str  "0" to begin, then what the last call answered, until that is "0"
-- @arg   limit     int  instances to look at, 1 to 1,000
-- @arg   dead      str  runs of servers that are gone, comma-separated
-- @arg   grace_ms  int  time left to their leases
-- @from  BACKOFF, SLEEPING, WAITING, DEFERRED
-- @to    QUEUED
-- @reply OK(cursor str, scanned int, repaired int, orphaned int)
-- @emits TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-SWEEP-1, R-SWEEP-2
--!include orphan mend dead commit

local now = meta_load(now_ms)
local page = redis.call('ZRANGEBYLEX', T .. 'busy', cursor == '0' and '-' or '(' .. cursor, '+', 'LIMIT', 0, limit)
local repaired, orphaned = 0, 0

-- Whether settling has taken the member out of `busy` by itself.
local function settled_out(member)
  return MARKS['busy'] and MARKS['busy'][member] == false
end

-- A head with unfinished turns; `member` is its entry in `busy`.
local function sweep_head(member)
  local u = settled_load(now, server, string.match(member, '[^:]*$'))
  if not u or u.r[PENDING] == 0 or unit_member(u) ~= member then
    return MISSING.damaged or settled_out(member)
  end
  local run = u.r[CONN] ~= 0 and string.match(u.r[CONN], '^[^.]*')
  if dead ~= '' and HELD[u.r[STATE]] and run and string.find(',' .. dead .. ',', ',' .. run .. ',', 1, true) then
    orphan_lease(u, now, grace_ms)
    orphaned = orphaned + 1
  end
  if mend_entries(u, now, server) then
    repaired = repaired + 1
  end
  return true
end

-- An instance with delayed messages, or one that is being deleted.
local function sweep_later(member)
  local id = string.match(member, '[^:]*$')
  local u = settled_load(now, server, id)
  local lost = false
  if MISSING.deleting then
    lost = mend_entry('delete:' .. id, now)
  elseif not u or u.r[DELAYED] == 0 or unit_later(u) ~= member then
    return MISSING.damaged or settled_out(member)
  else
    lost = mend_entry('delayed:' .. id, u.r[DELAYED_AT])
  end
  if lost then
    repaired = repaired + 1
  end
  return true
end

for i = 1, #page do
  local later = string.sub(page[i], 1, 1) == '~'
  -- A damaged instance stays where it is found.
  if not (later and sweep_later(page[i]) or not later and sweep_head(page[i])) then
    unit_mark('busy', page[i], false)
    repaired = repaired + 1
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
