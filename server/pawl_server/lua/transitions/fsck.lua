--- fsck: recounts instances from their fields, compares records, indexes and timers, and repairs what can be.
-- @keyspace meta i e l ready types due busy failed paused parked damaged ids tag key waiting ch feed typeindex
-- @arg   now_ms  int   engine time in virtual-time namespaces
-- @arg   server  str   run id of the caller
-- @arg   repair  bool  whether to repair
-- @item  id      str   instance id
-- @from  WAITING
-- @to    QUEUED
-- @reply OK(findings list) | NOT_FOUND
-- @emits TURN_READY
-- @oom   allow
-- @lane  bulk
-- @spec  R-FSCK-1, R-FSCK-3
--!include mend history receipt operation commit

local now = meta_load(now_ms)
local found

-- Notes what is wrong. What is prepared to mend it is only written if asked for.
local function note(wrong, text)
  if wrong then
    found[#found + 1] = text
  end
  return wrong
end

-- A counter of the record against a recount.
local function recount(u, field, name, value)
  if note(u.r[field] ~= value, string.format('%s is %.0f, a recount gives %.0f', name, u.r[field], value)) then
    u.r[field] = value
    unit_touch(u)
  end
end

-- The names of an instance's fields, sorted out.
local function field_names(u)
  local all = redis.call('HKEYS', u.key)
  local f = { has = {}, delayed = {}, known = {}, parked = {}, turns = {}, signalled = {}, values = {}, routes = {} }
  for i = 1, #all do
    local field = all[i]
    f.has[field] = true
    local turn, part = string.match(field, '^(%d+)%.(%w+)$')
    local of_turn, number = string.match(field, '^(%d+)%.g%.(%d+)$')
    if of_turn then
      f.values[#f.values + 1] = { field, tonumber(of_turn), tonumber(number) }
    elseif turn and part == 'g' then
      f.signalled[#f.signalled + 1] = tonumber(turn)
    elseif string.sub(field, 1, 2) == 'g:' then
      f.routes[#f.routes + 1] = field
    elseif turn and part == 'p' then
      f.parked[#f.parked + 1] = tonumber(turn)
    elseif turn then
      f.turns[#f.turns + 1] = { field, tonumber(turn), part }
    elseif string.sub(field, 1, 2) == 'q:' then
      f.delayed[#f.delayed + 1] = string.sub(field, 3)
    elseif string.sub(field, 1, 2) == 'd:' then
      f.known[#f.known + 1] = field
    end
  end
  return f
end

local function check_turns(u, f)
  local r = u.r
  local pending = 0
  for turn = r[HEAD], r[TAIL] do
    if not f.has[turn .. '.h'] then
      pending = pending + 1
      note(not f.has[turn .. '.m'], 'turn ' .. turn .. ' has lost its message')
    end
  end
  recount(u, PENDING, 'pending turns', pending)
  local bytes = 0
  for turn = r[KEPT], r[HEAD] - 1 do
    local h = f.has[turn .. '.h'] and receipt_get(u, turn)
    note(not h, 'turn ' .. turn .. ' has lost its receipt')
    if h and (h[R_MESSAGE_ID] or 0) == 0 then
      bytes = bytes + h[R_BYTES]
    end
  end
  recount(u, KBYTES, 'kept bytes', bytes)
  local steps = 0
  while steps < 10000 and f.has[r[HEAD] .. '.' .. steps + 1] do
    steps = steps + 1
  end
  note(r[PENDING] > 0 and steps ~= r[STEPS], 'the head has ' .. steps .. ' steps, its record says ' .. r[STEPS])
  local registered = f.has[r[HEAD] .. '.o'] and operation_get(u)
  if note(r[OP] > 0 and not registered, 'the registered step of the head is lost') then
    r[OP], r[OP_AT] = 0, 0
    DUE['operation:' .. u.id] = false
    unit_touch(u)
  end
  for i = 1, #f.turns do
    local field, turn, part = unpack(f.turns[i])
    local gone = turn < r[OLDEST] or turn > r[TAIL] or turn < r[KEPT] and part ~= 'h'
    local saved = part == 'o' and turn >= r[HEAD] and r[OP] == 0
    if note(gone, 'field ' .. field .. ' is left of a turn that was trimmed')
      or note(saved, 'field ' .. field .. ' is left of a step that is over') then
      unit_set(u, field, false)
    end
  end
  for i = 1, #f.known do
    local turn = unit_get(u, f.known[i])
    local lost = turn == 'q' and not f.has['q:' .. string.sub(f.known[i], 3)]
      or tonumber(turn) and (tonumber(turn) < r[OLDEST] or tonumber(turn) > r[TAIL])
    if note(lost, 'field ' .. f.known[i] .. ' leads nowhere') then
      unit_set(u, f.known[i], false)
    end
  end
end

-- Whether the values that a turn has not consumed are still kept.
local function values_kept(u, f, turn)
  local h = f.has[turn .. '.h'] and receipt_get(u, turn)
  return turn >= u.r[KEPT] and not (h and (h[R_MESSAGE_ID] or 0) ~= 0)
end

-- What turns have received, and the values that nothing has consumed.
local function check_received(u, f)
  local r = u.r
  local count = 0
  for i = 1, #f.signalled do
    local turn = f.signalled[i]
    if note(turn < r[OLDEST] or turn > r[TAIL] + 1, 'signals are left of turn ' .. turn .. ', which was trimmed') then
      unit_set(u, turn .. '.g', false)
    else
      count = count + 1
    end
  end
  recount(u, SIGNALLED, 'turns with signals', count)
  local wanted = {}
  for i = 1, #f.signalled do
    local turn = f.signalled[i]
    local g = unit_table(u, turn .. '.g')
    note(unit_get(u, turn .. '.g') and not g, 'what turn ' .. turn .. " has received can't be read")
    for at = 2, g and values_kept(u, f, turn) and #g or 0 do
      if g[at][G_POSITION] == 0 then
        wanted[signal_field(turn, at)] = true
        note(not f.has[signal_field(turn, at)], 'turn ' .. turn .. ' has lost the value of signal ' .. at - 1)
      end
    end
  end
  for i = 1, #f.values do
    local field, turn = f.values[i][1], f.values[i][2]
    local unread = unit_get(u, turn .. '.g') and not unit_table(u, turn .. '.g')
    if note(not wanted[field] and not unread, 'field ' .. field .. ' is no value of a signal') then
      unit_set(u, field, false)
    end
  end
  for i = 1, #f.routes do
    local g, known = unit_table(u, unit_get(u, f.routes[i]) .. '.g'), false
    for at = 2, g and #g or 0 do
      known = known or 'g:' .. g[at][G_ID] == f.routes[i]
    end
    if note(not known, 'field ' .. f.routes[i] .. ' leads nowhere') then
      unit_set(u, f.routes[i], false)
    end
  end
end

-- A wait that can't be read never would end: the turn goes on, and waits anew.
local function check_wait(u, f)
  local r = u.r
  if note(r[STATE] == WAITING and not unit_table(u, 'w'), "what the head waits for can't be read") then
    make_unready(u)
    r[DEADLINE] = 0
    transition(u, QUEUED)
    ledger_add(u, TURN_READY, now, r[HEAD], QUEUED)
    make_ready(u, now, server)
  elseif note(f.has.w and r[STATE] ~= WAITING, 'something is left of a wait that has ended') then
    unit_set(u, 'w', false)
  end
end

local function check_delayed(u, f)
  local listed = redis.call('ZRANGE', T .. 'l:' .. u.id, 0, -1)
  local wanted, first, count = {}, 0, 0
  for i = 1, #f.delayed do
    local q = unit_table(u, 'q:' .. f.delayed[i])
    if q then
      local member = q[8] .. f.delayed[i]
      wanted[member] = true
      count = count + 1
      first = (first == 0 or q[7] < first) and q[7] or first
      note(mend_mark('l:' .. u.id, T .. 'l:' .. u.id, member, true, q[7]), 'delayed message ' .. f.delayed[i] .. ' was not listed')
    else
      note(true, 'delayed message ' .. f.delayed[i] .. " can't be read")
    end
  end
  for i = 1, #listed do
    if note(not wanted[listed[i]], 'list of delayed messages has ' .. listed[i] .. ', which is not there') then
      unit_mark('l:' .. u.id, listed[i], false)
    end
  end
  recount(u, DELAYED, 'delayed messages', count)
  recount(u, DELAYED_AT, 'time of the first delayed message', first)
end

local function check_indexes(u, f)
  local r = u.r
  local member = unit_member(u)
  note(mend_mark('busy', T .. 'busy', member, r[PENDING] > 0), 'was not in busy')
  note(mend_mark('busy', T .. 'busy', unit_later(u), r[DELAYED] > 0), 'was not in busy for its delayed messages')
  recount(u, PARKED_TURNS, 'parked turns', #f.parked)
  for i = 1, #f.parked do
    local parked = string.format('%s:%016.0f', member, f.parked[i])
    note(mend_mark('parked', T .. 'parked', parked, true), 'parked turn ' .. f.parked[i] .. ' was not listed')
  end
  local birth = unit_birth(u)
  if note(birth.damaged, "what creation fixed can't be read") then
    return
  end
  note(mend_mark('typeindex', T .. 'typeindex', unit_type(u), true), 'its type was not listed')
  local names = unit_indexes(unit_type(u), birth[6])
  for i = 1, #names do
    note(mend_mark(names[i], T .. names[i], u.id, true, birth[2]), 'was not in ' .. names[i])
  end
  note(mend_entries(u, now, server), 'an entry that wakes it or lists it was missing')
  note(mend_entry('gc:' .. u.id, r[GC_AT]), 'the entry for trimming was missing')
end

local function check_ledger(u)
  local raw = redis.call('LRANGE', T .. 'e:' .. u.id, -1, -1)[1]
  local ok, event = false, nil
  if raw then
    ok, event = pcall(cmsgpack.unpack, raw)
  end
  local seq = ok and type(event) == 'table' and event[9] or 0
  if note(seq ~= u.r[SEQ], string.format('ledger ends with event %.0f, the record says %.0f', seq, u.r[SEQ])) then
    u.r[SEQ] = math.max(seq, u.r[SEQ])
    unit_touch(u)
  end
end

local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = unit_load(id)
  found = {}
  if u then
    local f = field_names(u)
    check_turns(u, f)
    check_received(u, f)
    check_delayed(u, f)
    check_indexes(u, f)
    check_ledger(u)
    check_wait(u, f)
    replies[#replies + 1] = { 'OK', found }
  elseif MISSING.damaged then
    unit_mark('damaged', 'i:' .. id, now)
    replies[#replies + 1] = { 'OK', { "its record can't be read" } }
  elseif MISSING.deleting then
    note(mend_entry('delete:' .. id, now), 'its deletion had stopped')
    replies[#replies + 1] = { 'OK', found }
  else
    replies[#replies + 1] = { 'NOT_FOUND' }
  end
end
return { now, replies, repair and unit_commit(server) or {} }
