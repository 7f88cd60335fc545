--- expire: applies what is due: leases that ran out, backoffs that are over, trimming.
-- Entries are removed only here, by the script that applies them. A stale entry is a counted no-op. While the clock was not
-- watched, and for a while after, no lease ends: live holders renew first.
-- @keyspace meta i e type ready types due busy waiting ch
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   server  str  run id of the caller
-- @arg   limit   int  entries to look at, 1 to 256
-- @from  RUNNING, BACKOFF
-- @to    QUEUED, BACKOFF, FAILED
-- @reply FIRED(kind str, id str, inc int, turn int, fence int, conn str, outcome str) | STALE(kind str, id str) | HELD(id str) | NEXT(due_ms int)
-- @emits ATTEMPT_EXPIRED, ATTEMPT_LOST, TURN_FAILED
-- @oom   allow
-- @spec  R-EXPIRE-1, R-EXPIRE-2, R-EXPIRE-3, R-EXPIRE-4
--!include expire history commit

-- Timers of an instance that can't be read are looked at again after this time.
local DAMAGED_MS = 60000

local now = meta_load(now_ms)
local entries = redis.call('ZRANGEBYSCORE', T .. 'due', '-inf', now, 'LIMIT', 0, limit)
local replies = {}
for i = 1, #entries do
  local kind, id = string.match(entries[i], '^(%a*):?(.*)$')
  local u = settled_load(now, server, id)
  local reply
  if not u then
    DUE[entries[i]] = MISSING.damaged and now + DAMAGED_MS
    reply = { 'STALE', kind, id }
  elseif kind == 'lease' then
    reply = expire_lease(u, now, server)
  elseif kind == 'backoff' then
    if DUE[entries[i]] == nil then
      DUE[entries[i]] = false
      reply = { 'STALE', kind, id }
      if u.r[STATE] == BACKOFF then
        DUE[entries[i]] = u.r[DEADLINE]
      end
    else
      reply = { 'FIRED', kind, id, u.r[INC], u.r[HEAD], 0, '', 'ready' }
    end
  elseif kind == 'gc' then
    local trimmed = history_trim(u, now, 16)
    history_arm(u, now)
    if DUE[entries[i]] == nil then
      DUE[entries[i]] = false
    end
    reply = { 'FIRED', kind, id, u.r[INC], u.r[HEAD], 0, '', tostring(trimmed) }
  else
    DUE[entries[i]] = false
    reply = { 'STALE', kind, id }
  end
  replies[#replies + 1] = reply
end
local upcoming = redis.call('ZRANGEBYSCORE', T .. 'due', #entries == limit and '-inf' or '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local next_ms = tonumber(upcoming[2]) or 0
for _, at in pairs(DUE) do
  if at and (next_ms == 0 or at < next_ms) then
    next_ms = at
  end
end
replies[#replies + 1] = { 'NEXT', next_ms }
return { now, replies, unit_commit(server) }
