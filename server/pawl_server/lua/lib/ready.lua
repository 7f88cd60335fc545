--!include unit
-- The ready set of one type:version (a zset per lane, one lane so far) and the servers that wait for it.

local PAGE = 32

local function ready_open(tv)
  local ready = READY[tv]
  if not ready then
    ready = { change = {}, found = {}, next = 1, scanned = 0, more = true }
    READY[tv] = ready
  end
  return ready
end

-- Tells one waiting server that something is ready; it waits no more then. None is told while the caller waits itself, as it
-- learns from the reply, unless it is known to be full.
local function ready_tell(tv, now, server, full)
  local ready = ready_open(tv)
  local waiting = redis.call('ZRANGEBYSCORE', T .. 'waiting:' .. tv, now, '+inf', 'LIMIT', 0, 2)
  local own = waiting[1] == server or waiting[2] == server
  local other = waiting[1] ~= server and waiting[1] or waiting[2]
  if other and not ready.told and (full or not own) then
    ready.told = other
    PUBLISH[#PUBLISH + 1] = other
    PUBLISH[#PUBLISH + 1] = 'ready ' .. tv
  end
end

-- Adds a head to the ready set.
local function ready_add(u, now, server)
  local ready = ready_open(u.tv)
  ready.change[u.id] = now
  if not ready.added then
    ready.added = now
    ready_tell(u.tv, now, server, false)
  end
end

-- The next candidate id, oldest first: stored entries, then the ones this script adds. nil when there is none.
local function ready_next(tv)
  local ready = ready_open(tv)
  repeat
    local id = ready.found[ready.next]
    if id then
      ready.next = ready.next + 1
      if ready.change[id] == nil then
        return id
      end
    elseif ready.more then
      ready.found =
        redis.call('ZRANGE', T .. 'ready:' .. tv .. ':0', ready.scanned, ready.scanned + PAGE - 1)
      ready.scanned = ready.scanned + #ready.found
      ready.more = #ready.found == PAGE
      -- `types` names this set already, with a time that is no later.
      ready.listed = ready.listed or #ready.found > 0
      ready.next = 1
    end
  until not id and not ready.more and not ready.found[ready.next]
  for id2, score in pairs(ready.change) do
    if score then
      return id2
    end
  end
  return nil
end

-- After claiming: the time in `types` that tells pollers whether anything is left.
local function ready_close(tv, now)
  local ready = ready_open(tv)
  ready.closed = true
  if ready.more or ready.found[ready.next] then
    return true
  end
  for _, score in pairs(ready.change) do
    if score then
      ready.earliest = score
      return true
    end
  end
  ready.earliest = false
  ready.added = nil
  return false
end

-- What the script leaves of a ready set that it did not claim from, once all is computed: `types` names none that is empty.
local function ready_settle(tv)
  local ready = READY[tv]
  local gone = {}
  for id, score in pairs(ready.change) do
    if score or ready.closed then
      return
    end
    gone[#gone + 1] = id
  end
  if #gone == 0 then
    return
  end
  ready.added = nil
  local key = T .. 'ready:' .. tv .. ':0'
  local left = redis.call('ZCARD', key)
  for i = 1, #gone do
    if left > 0 and redis.call('ZSCORE', key, gone[i]) then
      left = left - 1
    end
  end
  if left == 0 then
    ready.earliest = false
  end
end
