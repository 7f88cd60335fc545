--- list_events: reads events of an instance after a place in its ledger.
-- @keyspace meta i e dead
-- @arg   now_ms       int  engine time in virtual-time namespaces
-- @arg   id           str  instance id
-- @arg   incarnation  int  life of the event at `seq`; 0 for any
-- @arg   seq          int  events after this one; 0 for the oldest kept, -1 for none
-- @arg   gen          int  generation of that event; 0 for any
-- @arg   limit        int  events wanted
-- @arg   followed     bool whether that event was heard just now, and not read from a place that somebody kept
-- @reply OK(incarnation int, events list, last_seq int, last_gen int, oldest_seq int, status int) | NOT_FOUND
--        | COMPACTED(oldest_seq int, incarnation int) | REWOUND(last_seq int, gen int)
-- @oom   reads
-- @lane  bulk
-- @spec  R-EVENT-3, R-EVENT-4, R-EVENT-5
--!include ledger view dead

local now = meta_load(now_ms)

-- Whether the life that was followed was lost with a generation: it is not there, and was not deleted.
local function lost()
  if not followed or gen == 0 or gen >= META.gen then
    return false
  end
  local dead = dead_get(id, now)
  return not dead or dead[D_INC] < incarnation
end

local u = unit_load(id)
if not u then
  local reply = unit_absent()
  if reply[1] == 'NOT_FOUND' and lost() then
    reply = { 'REWOUND', 0, 0 }
  end
  return { now, { reply }, {} }
end
local key = T .. 'e:' .. id
local last = u.r[SEQ]
-- Number of the event before the oldest one that is kept.
local base = last - redis.call('LLEN', key)

local function gen_of(n)
  local raw = n > base and redis.call('LINDEX', key, n - base - 1)
  return raw and cmsgpack.unpack(raw)[3] or 0
end

local last_gen = gen_of(last)
if seq > last or incarnation > u.r[INC] or incarnation > 0 and incarnation < u.r[INC] and lost() then
  return { now, { { 'REWOUND', last, last_gen } }, {} }
elseif seq > 0 and (seq < base or (incarnation > 0 and incarnation < u.r[INC])) then
  return { now, { { 'COMPACTED', base + 1, u.r[INC] } }, {} }
elseif seq > base and gen > 0 and gen_of(seq) ~= gen then
  return { now, { { 'REWOUND', last, last_gen } }, {} }
end
local from = seq < 0 and last or math.max(seq, base)
local events = redis.call('LRANGE', key, from - base, from - base + limit - 1)
local reply = { 'OK', u.r[INC], events, last, last_gen, base + 1, instance_status(u.r) }
return { now, { reply }, {} }
