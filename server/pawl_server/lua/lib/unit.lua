--!include record meta
-- Unit of work. Part one of a script reads instances and indexes through this overlay and changes them only here; part
-- two is unit_commit(), the one place that writes: prepared values, merged over the whole list.

local UNITS = {} -- id -> unit
local ORDER = {} -- units in order of loading
local READY = {} -- type:version -> ready set overlay, see ready.lua
local DUE = {} -- member -> engine ms, or false to remove
local BUSY = {} -- id -> true or false
local INDEX = {} -- type -> flat list of score, id: new instances
local WAITERS = {} -- type:version -> engine ms of expiry, or false to remove the caller
local PUBLISH = {} -- flat list of server, message
local LEDGER_KEEP = 200
local WAIT_MS = 5000

-- Loads an instance with the extra fields named; absent instances give nil.
local function unit_load(id, ...)
  local u = UNITS[id]
  if u then
    return u.r and u or nil
  end
  local key = T .. 'i:' .. id
  local v = redis.call('HMGET', key, 'r', 'y', ...)
  u = { id = id, key = key, set = {}, cache = {}, events = {} }
  UNITS[id] = u
  ORDER[#ORDER + 1] = u
  for i = 1, select('#', ...) do
    u.cache[select(i, ...)] = v[i + 2]
  end
  if not v[1] then
    return nil
  end
  u.r = record_unpack(v[1])
  local y = cmsgpack.unpack(v[2])
  u.y = y
  u.raw_r = v[1]
  u.raw_y = v[2]
  u.tv = y[2] .. ':' .. y[3]
  return u
end

-- One field as the script sees it: prepared writes first.
local function unit_get(u, field)
  local v = u.set[field]
  if v == nil then
    v = u.cache[field]
    if v == nil then
      v = redis.call('HGET', u.key, field)
      u.cache[field] = v
    end
  end
  return v
end

local function unit_set(u, field, value)
  u.set[field] = value
end

local function unit_touch(u)
  u.dirty = true
end

-- A write whose argument list may be long: Lua unpacks some thousands of values at most. Chunks are even, for pairs.
local function unit_write(command, key, values)
  for from = 1, #values, 1000 do
    redis.call(command, key, unpack(values, from, math.min(from + 999, #values)))
  end
end

local function unit_write_instance(u)
  local set, del, put, gone = {}, {}, 0, 0
  if u.dirty then
    set[1], set[2], put = 'r', u.packed, 2
  end
  for field, value in pairs(u.set) do
    if value then
      set[put + 1], set[put + 2], put = field, value, put + 2
    elseif u.cache[field] ~= false then
      gone = gone + 1
      del[gone] = field
    end
  end
  if put > 0 then
    unit_write('HSET', u.key, set)
  end
  if gone > 0 then
    unit_write('HDEL', u.key, del)
  end
  if #u.events > 0 then
    unit_write('RPUSH', T .. 'e:' .. u.id, u.events)
    if u.trim_ledger then
      redis.call('LTRIM', T .. 'e:' .. u.id, -LEDGER_KEEP, -1)
    end
  end
end

local function unit_write_zset(key, entries)
  local add, rem = {}, {}
  for member, score in pairs(entries) do
    if score then
      add[#add + 1] = score
      add[#add + 1] = member
    else
      rem[#rem + 1] = member
    end
  end
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
    elseif ready.added then
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

local function unit_write_sets(server)
  local add, rem = {}, {}
  for id, member in pairs(BUSY) do
    if member then
      add[#add + 1] = id
    else
      rem[#rem + 1] = id
    end
  end
  if #add > 0 then
    unit_write('SADD', T .. 'busy', add)
  end
  if #rem > 0 then
    unit_write('SREM', T .. 'busy', rem)
  end
  for name, entries in pairs(INDEX) do
    unit_write('ZADD', T .. 'ids:' .. name, entries)
  end
  for tv, expiry in pairs(WAITERS) do
    if expiry then
      redis.call('ZADD', T .. 'waiting:' .. tv, expiry, server)
    else
      redis.call('ZREM', T .. 'waiting:' .. tv, server)
    end
  end
end

-- Part two. `server` is the run id of the caller; the answer is the list of type:version that became ready.
local function unit_commit(server)
  local ready = {}
  for i = 1, #ORDER do
    local u = ORDER[i]
    if u.dirty then
      u.packed = record_pack(u.r)
    end
  end
  for tv, overlay in pairs(READY) do
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
  -- From here on only writes.
  if #meta > 0 then
    redis.call('HSET', T .. 'meta', unpack(meta))
  end
  for i = 1, #ORDER do
    local u = ORDER[i]
    if u.r then
      unit_write_instance(u)
    end
  end
  unit_write_zset(T .. 'due', DUE)
  unit_write_ready()
  unit_write_sets(server)
  for i = 1, #PUBLISH, 2 do
    redis.call('SPUBLISH', T .. 'ch:' .. PUBLISH[i], PUBLISH[i + 1])
  end
  return ready
end
