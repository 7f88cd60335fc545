--!include record meta
-- Unit of work. Part one of a script reads instances and indexes through this overlay and changes them only here; part
-- two is unit_commit() of commit.lua.

local UNITS = {} -- id -> unit
local MISSING = { damaged = false, deleting = false } -- why the instance asked for last is not given out, unless it is absent
local ORDER = {} -- units in order of loading
local READY = {} -- type:version -> ready set overlay, see ready.lua
local DUE = {} -- member -> engine ms, or false to remove
local MARKS = {} -- name of a sorted set -> member -> score, or false to remove
local INDEX = {} -- name of an index -> flat list of score, id: new instances
local GONE = {} -- keys to remove as a whole
local DEAD = {} -- id -> what is remembered of a deleted instance
local WAITERS = {} -- type:version -> engine ms of expiry, or false to remove the caller
local PUBLISH = {} -- flat list of server, message
local WAIT_MS = 5000

-- Loads an instance with the extra fields named; absent instances give nil.
local function unit_load(id, ...)
  local u = UNITS[id]
  if u then
    MISSING.damaged, MISSING.deleting = u.damaged, u.deleting
    return u.r and not u.deleting and u or nil
  end
  local key = T .. 'i:' .. id
  local v = redis.call('HMGET', key, 'r', 'y', ...)
  local cache = {}
  u = { id = id, key = key, set = {}, put = {}, cache = cache }
  UNITS[id] = u
  ORDER[#ORDER + 1] = u
  for i = 1, select('#', ...) do
    cache[select(i, ...)] = v[i + 2]
  end
  u.r = v[1] and v[2] and record_unpack(v[1]) or nil
  u.damaged = not u.r and (v[1] or v[2]) and true or false
  u.deleting = u.r and has_bit(u.r[FLAGS], 2) or false
  u.tv = v[2]
  MISSING.damaged, MISSING.deleting = u.damaged, u.deleting
  return u.r and not u.deleting and u or nil
end

-- The reply for an instance that could not be loaded. A damaged one is never taken for an absent one, and stops no other.
--!rare
local function unit_absent()
  if MISSING.damaged then
    return { 'DAMAGED' }
  elseif MISSING.deleting then
    return { 'DELETING' }
  end
  return { 'NOT_FOUND' }
end

-- Puts a member into a sorted set, or takes it out with false.
local function unit_mark(name, member, score)
  local marks = MARKS[name] or {}
  marks[member] = score
  MARKS[name] = marks
end

-- The member of an instance in the sets that list instances by type and version.
local function unit_member(u)
  return u.tv .. ':' .. u.id
end

-- The member in `busy` of an instance that something is to be done for besides its turns.
local function unit_later(u)
  return '~' .. unit_member(u)
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

-- Sets a field, or removes it with false. The last word on a field counts: one that was removed may be set again.
local function unit_set(u, field, value)
  local put = u.put
  if value then
    if u.set[field] == false then
      for i = #u.drop, 1, -1 do
        if u.drop[i] == field then
          table.remove(u.drop, i)
        end
      end
    end
    put[#put + 1] = field
    put[#put + 1] = value
  else
    u.drop = u.drop or {}
    u.drop[#u.drop + 1] = field
  end
  u.set[field] = value
end

-- Removes a field that somebody would act on: it is emptied with everything else the script writes, and then removed.
local function unit_clear(u, field)
  unit_set(u, field, '')
  unit_set(u, field, false)
end

-- A packed field as a table; nil if there is none or it can't be read.
local function unit_table(u, field)
  local raw = unit_get(u, field)
  if raw then
    local _, value = pcall(cmsgpack.unpack, raw) -- text if it fails
    if type(value) == 'table' then
      return value
    end
  end
  return nil
end

-- Workflow type of an instance; `y` is type:version.
local function unit_type(u)
  local name = u.type
  if not name then
    name = string.match(u.tv, '^[^:]*')
    u.type = name
  end
  return name
end

-- What the instance was created with: a msgpack array (version, engine ms, create digest, lease ms, max attempts; and where
-- needed: correlation key and tags, request id, first turn, first event, retry policy).
local function unit_birth(u)
  if not u.birth then
    local birth = unit_table(u, 'o')
    u.birth = birth and type(birth[5]) == 'number' and birth or { 1, 0, '', 0, 0, damaged = true }
  end
  return u.birth
end

-- The indexes by creation that list an instance of the type: all of it, by its correlation key, by each of its tags.
-- `words` is the correlation key and the tags, each followed by a zero byte, or nil.
local function unit_indexes(type, words)
  local name = 'ids:' .. type
  local names, nth = { name }, 0
  for word in string.gmatch(words or '', '([^%z]*)%z') do
    name = 'tag:'
    if nth == 0 then
      name = 'key:'
    end
    if word ~= '' then
      names[#names + 1] = name .. type .. ':' .. word
    end
    nth = nth + 1
  end
  return names
end

local function unit_touch(u)
  u.dirty = true
end
