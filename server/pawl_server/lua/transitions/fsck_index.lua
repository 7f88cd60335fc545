--- fsck_index: looks for entries of an index, or for a key of an instance, that nothing stands behind, and removes them.
-- @keyspace meta i e l x ready types due busy failed paused parked damaged ids tag key waiting ch feed
-- @arg   now_ms  int   engine time in virtual-time namespaces
-- @arg   server  str   run id of the caller
-- @arg   name    str   name of the key without the partition's prefix
-- @arg   cursor  str   "0" to begin, then what the last call answered, until that is "0"
-- @arg   limit   int   entries to look at, 1 to 1,000; Redis may look at somewhat more
-- @arg   repair  bool  whether to remove what is found
-- @reply OK(cursor str, checked int, findings list)
-- @oom   allow
-- @lane  bulk
-- @spec  R-FSCK-2, R-FSCK-3
--!include settle commit

-- Kinds of `due` entry that belong to a state of the head.
local STATES = { sleep = SLEEPING, wait = WAITING, backoff = BACKOFF, defer = DEFERRED }
local SECONDARY = { delayed = DELAYED_AT, expiry = EXPIRES_AT, gc = GC_AT, cancel = CANCEL_AT, total = TOTAL_AT }

local now = meta_load(now_ms)
local kind, rest = string.match(name, '^(%a+):?(.*)$')
local findings = {}

-- What an entry of `due` needs of its instance.
local function due_stands(u, deleting, what)
  if what == 'delete' then
    return deleting
  elseif not u then
    return false
  elseif what == 'lease' then
    return HELD[u.r[STATE]]
  elseif STATES[what] then
    return u.r[STATE] == STATES[what] and u.r[DEADLINE] > 0 and not has_bit(u.r[FLAGS], 1)
  elseif SECONDARY[what] then
    return u.r[SECONDARY[what]] > 0
  end
  return what == 'settle' and u.r[STATE] == BEHIND
end

-- Whether the entry has what it stands for. What can't be read is left alone.
local function stands(member)
  if kind == 'due' then
    local what, id = string.match(member, '^(%a+):(.*)$')
    local u = id and unit_load(id)
    return id and (MISSING.damaged or due_stands(u, MISSING.deleting, what))
  elseif kind == 'parked' then
    local tv, id, turn = string.match(member, '^([^:]*:[^:]*):([^:]*):(%d+)$')
    local u = id and unit_load(id)
    return id and (MISSING.damaged or u and u.tv == tv and unit_get(u, string.format('%.0f', tonumber(turn)) .. '.p'))
  elseif kind == 'damaged' then
    local id = string.match(member, '^%a:([^:]*)')
    local q = string.match(member, '^q:[^:]*:(.*)$')
    local u = id and unit_load(id)
    return id and (MISSING.damaged or u and q and unit_get(u, 'q:' .. q) and not unit_table(u, 'q:' .. q))
  end
  if kind == 'types' then
    return redis.call('EXISTS', T .. 'ready:' .. member .. ':0') == 1
  end
  local id = string.match(member, '[^:]*$')
  local u = unit_load(id)
  if MISSING.damaged then
    return true
  elseif string.sub(member, 1, 1) == '~' then
    return MISSING.deleting or u and u.r[DELAYED] > 0 and unit_later(u) == member
  elseif not u then
    return MISSING.deleting and kind == 'busy'
  elseif kind == 'busy' then
    return u.r[PENDING] > 0 and unit_member(u) == member
  elseif kind == 'failed' then
    return (u.r[STATE] == FAILED or u.r[STATE] == UNCERTAIN) and unit_member(u) == member
  elseif kind == 'paused' then
    return has_bit(u.r[FLAGS], 1) and unit_member(u) == member
  elseif kind == 'ready' then
    return u.r[STATE] == QUEUED and not has_bit(u.r[FLAGS], 1) and rest == u.tv .. ':0'
  elseif kind == 'ids' or kind == 'tag' or kind == 'key' then
    return string.match(rest, '^[^:]*') == unit_type(u)
  end
  return true
end

local after, checked = '0', 0
if kind == 'e' or kind == 'l' or kind == 'x' then
  checked = 1
  local u = unit_load(rest)
  -- Both may be gone since the name was listed.
  if not u and not MISSING.damaged and redis.call('EXISTS', T .. name) == 1 then
    findings[1] = { name, '', 'no instance' }
    GONE[1] = T .. name
  end
else
  local page = redis.call('ZSCAN', T .. name, cursor, 'COUNT', limit)
  after = page[1]
  for i = 1, #page[2], 2 do
    local member = page[2][i]
    checked = checked + 1
    if not stands(member) then
      findings[#findings + 1] = { name, member, 'nothing stands behind it' }
      if kind == 'due' then
        DUE[member] = false
      else
        unit_mark(name, member, false)
      end
    end
  end
end
return { now, { { 'OK', after, checked, findings } }, repair and unit_commit(server) or {} }
