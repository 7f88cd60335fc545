--!include wake type
-- The removal of an instance, at once or some fields at a time.

local BURY_FIELDS = 1000
local BURY_KINDS = { 'lease:', 'backoff:', 'sleep:', 'wait:', 'defer:', 'gc:', 'delayed:', 'expiry:', 'settle:', 'cancel:', 'total:', 'delete:', 'operation:' }
local BURY_DAMAGED = 1000

-- Takes it out of every index, and removes what it has besides its hash.
local function bury_entries(u)
  local member = unit_member(u)
  ready_open(u.tv).change[u.id] = false
  for i = 1, #BURY_KINDS do
    DUE[BURY_KINDS[i] .. u.id] = false
  end
  unit_mark('busy', member, false)
  unit_mark('busy', unit_later(u), false)
  unit_mark('failed', member, false)
  unit_mark('paused', member, false)
  local parked = redis.call('ZRANGEBYLEX', T .. 'parked', '[' .. member .. ':', '(' .. member .. ';')
  for i = 1, #parked do
    unit_mark('parked', parked[i], false)
  end
  local damaged = redis.call('ZRANGE', T .. 'damaged', 0, BURY_DAMAGED - 1)
  for i = 1, #damaged do
    if string.match(damaged[i], '^%a:([^:]*)') == u.id then
      unit_mark('damaged', damaged[i], false)
    end
  end
  local names = unit_indexes(unit_type(u), unit_birth(u)[6])
  for i = 1, #names do
    unit_mark(names[i], u.id, false)
  end
  GONE[#GONE + 1] = T .. 'l:' .. u.id
  GONE[#GONE + 1] = T .. 'x:' .. u.id
  GONE[#GONE + 1] = T .. 'e:' .. u.id
end

local function bury_rest(u)
  u.gone = true
  GONE[#GONE + 1] = u.key
end

-- Goes on with the removal of an instance that is being deleted; the outcome.
local function bury_more(u, now)
  if redis.call('HLEN', u.key) <= BURY_FIELDS then
    bury_entries(u)
    bury_rest(u)
    return 'deleted'
  end
  local fields = redis.call('HRANDFIELD', u.key, BURY_FIELDS)
  for i = 1, #fields do
    local field = fields[i]
    if field ~= 'r' and field ~= 'y' and field ~= 'o' then
      unit_set(u, field, false)
    end
  end
  DUE['delete:' .. u.id] = now
  return 'deleting'
end
