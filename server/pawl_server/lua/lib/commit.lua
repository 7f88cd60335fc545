--!include unit ready feed
-- Part two of a script, the one place that writes: prepared values, merged over the whole list.

local LEDGER_KEEP = 200

-- A write whose argument list may be long: Lua unpacks some thousands of values at most. Chunks are even, for pairs.
local function unit_write(command, key, values)
  local n = #values
  for from = 1, n, 1000 do
    redis.call(command, key, unpack(values, from, math.min(from + 999, n)))
  end
end

local function unit_write_instance(u)
  if #u.put > 0 then
    unit_write('HSET', u.key, u.put)
  end
  if u.drop then
    unit_write('HDEL', u.key, u.drop)
  end
  if u.old_events then
    redis.call('LTRIM', T .. 'e:' .. u.id, u.old_events, -1)
  end
  if u.events then
    unit_write('RPUSH', T .. 'e:' .. u.id, u.events)
    if u.trim_ledger then
      redis.call('LTRIM', T .. 'e:' .. u.id, -LEDGER_KEEP, -1)
    end
  end
end

-- What a sorted set gains, as scores and members alternately, and the members it loses.
local function unit_split(entries)
  local add, rem = {}, {}
  for member, score in pairs(entries) do
    if score then
      add[#add + 1] = score
      add[#add + 1] = member
    else
      rem[#rem + 1] = member
    end
  end
  return add, rem
end

local function unit_write_zset(key, entries)
  local add, rem = unit_split(entries)
  if #add > 0 then
    unit_write('ZADD', key, add)
  end
  if #rem > 0 then
    unit_write('ZREM', key, rem)
  end
end

local function unit_write_ready()
  local types, lower, gone = {}, {}, {}
  for tv, ready in pairs(READY) do
    unit_write_zset(T .. 'ready:' .. tv .. ':0', ready.change)
    if ready.told then
      redis.call('ZREM', T .. 'waiting:' .. tv, ready.told)
    end
    if ready.earliest then
      types[#types + 1] = ready.earliest
      types[#types + 1] = tv
    elseif ready.earliest == false then
      gone[#gone + 1] = tv
    elseif ready.added and not ready.listed then
      lower[#lower + 1] = ready.added
      lower[#lower + 1] = tv
    end
  end
  if #types > 0 then
    redis.call('ZADD', T .. 'types', unpack(types))
  end
  if #lower > 0 then
    redis.call('ZADD', T .. 'types', 'LT', unpack(lower))
  end
  if #gone > 0 then
    redis.call('ZREM', T .. 'types', unpack(gone))
  end
end

-- What sweep and lists start from is added before the instance is written and removed after it: an entry too many is found
-- and passed over, one too few never would be found. The answer is what is to be removed, by name of the set.
local function unit_write_entries()
  local removed = {}
  for name, entries in pairs(INDEX) do
    unit_write('ZADD', T .. name, entries)
  end
  for name, entries in pairs(MARKS) do
    local add, rem = unit_split(entries)
    if #add > 0 then
      unit_write('ZADD', T .. name, add)
    end
    if #rem > 0 then
      removed[name] = rem
    end
  end
  for id, packed in pairs(DEAD) do
    if packed then
      redis.call('HSET', T .. 'dead', id, packed)
    end
  end
  return removed
end

local function unit_remove_entries(removed)
  for name, members in pairs(removed) do
    unit_write('ZREM', T .. name, members)
  end
  for id, packed in pairs(DEAD) do
    if not packed then
      redis.call('HDEL', T .. 'dead', id)
    end
  end
end

local function unit_write_waiters(server)
  for tv, expiry in pairs(WAITERS) do
    if expiry then
      redis.call('ZADD', T .. 'waiting:' .. tv, expiry, server)
      redis.call('ZREMRANGEBYSCORE', T .. 'waiting:' .. tv, '-inf', expiry - WAIT_MS - 1)
      redis.call('PEXPIRE', T .. 'waiting:' .. tv, 2 * WAIT_MS)
    else
      redis.call('ZREM', T .. 'waiting:' .. tv, server)
    end
  end
end

--!rare
local function unit_write_feed(feed)
  if feed.id then
    redis.call('XADD', T .. 'feed', 'MINID', '~', feed.from, feed.id, 'e', feed.entry)
    redis.call('SPUBLISH', T .. 'ch:feed', feed.entry)
  else
    redis.call('UNLINK', T .. 'feed')
  end
end

-- Part two. `server` is the run id of the caller; the answer is the list of type:version that became ready.
local function unit_commit(server)
  local ready = {}
  for i = 1, #ORDER do
    local u = ORDER[i]
    if u.dirty then
      unit_set(u, 'r', record_pack(u.r))
    end
  end
  for tv, overlay in pairs(READY) do
    ready_settle(tv)
    if overlay.added then
      ready[#ready + 1] = tv
    end
  end
  local meta = {}
  if META.fence_used then
    meta[1], meta[2] = 'fence', string.format('%.0f', META.fence)
  end
  if META.incarnation_used then
    meta[#meta + 1] = 'incarnation'
    meta[#meta + 1] = string.format('%.0f', META.incarnation)
  end
  local feed = feed_prepare()
  if feed then
    meta[#meta + 1] = feed.id and 'feed' or 'watch'
    meta[#meta + 1] = feed.id or '0'
  end
  -- From here on only writes.
  if #meta > 0 then
    redis.call('HSET', T .. 'meta', unpack(meta))
  end
  local removed = unit_write_entries()
  for i = 1, #ORDER do
    local u = ORDER[i]
    if u.r and not u.gone then
      unit_write_instance(u)
    end
  end
  unit_remove_entries(removed)
  if #GONE > 0 then
    redis.call('UNLINK', unpack(GONE))
  end
  unit_write_zset(T .. 'due', DUE)
  unit_write_ready()
  unit_write_waiters(server)
  if feed then
    unit_write_feed(feed)
  end
  for i = 1, #PUBLISH, 2 do
    redis.call('SPUBLISH', T .. 'ch:' .. PUBLISH[i], PUBLISH[i + 1])
  end
  return ready
end
