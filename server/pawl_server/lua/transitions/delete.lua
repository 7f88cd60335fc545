--- delete: removes an instance; one with many turns in the background, by the entry `delete`.
-- @keyspace meta i e feed type ids tag key l x dead deadtime parked failed paused damaged ready types due busy waiting ch
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   id          str    instance id
-- @arg   inc         int    incarnation; 0 for any
-- @arg   max_turns   int    turns that are removed at once
-- @arg   request_id  str    idempotency id; may be empty
-- @reply OK(deleted bool, background bool) | NOT_FOUND
-- @emits DELETED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-DELETE-1, R-DELETE-2, R-DELETE-3
--!include control buried dead commit

local KEPT_IDS = 256

local now = meta_load(now_ms)
local u = settled_load(now, server, id, 'o', 'c')

-- Digests of the newest message ids, so that a late repeat does not make a new life.
local function newest_ids(r)
  local ids = {}
  local delayed = redis.call('ZRANGE', T .. 'l:' .. id, 0, KEPT_IDS - 1)
  for i = 1, #delayed do
    ids[i] = dead_id(string.sub(delayed[i], 17))
  end
  for turn = r[TAIL], math.max(r[OLDEST], r[TAIL] - KEPT_IDS + 1), -1 do
    local m = unit_table(u, turn .. '.m')
    local h = not m and receipt_get(u, turn)
    local message_id = m and m[2] or h and h[R_MESSAGE_ID]
    if message_id and message_id ~= 0 then
      ids[#ids + 1] = dead_id(message_id)
    end
  end
  return table.concat(ids)
end

local dead = dead_get(id, now)
local repeats = dead and request_id ~= '' and dead[D_REQUEST] == request_id
local earlier = dead_repeats(dead, request_id)
local reply
if earlier then
  reply = { 'OK', 1, earlier }
elseif u and repeats and dead[D_INC] ~= u.r[INC] then
  -- The repeat of a deletion leaves a later life of the id alone.
  reply = { 'OK', 1, dead[D_BACKGROUND] }
elseif u and inc > 0 and inc ~= u.r[INC] then
  reply = { 'NOT_FOUND' }
elseif u then
  local r = u.r
  local background = r[TAIL] - r[OLDEST] + 1 > max_turns
  if HELD[r[STATE]] then
    tell_holder(u, r[CONN], r[HEAD], r[FENCE], 'deleted', '')
  end
  local ids = newest_ids(r)
  bury_entries(u)
  notify_awaiting(u, r[HEAD], '')
  r[FLAGS] = r[FLAGS] + 2
  ledger_add(u, DELETED, now, 0, 0)
  local record = { 1, r[INC], r[TAIL], r[SEQ], now, request_id, unit_birth(u)[7] or '', ids, background and 1 or 0, {}, {} }
  local answers = {}
  if dead and dead[D_INC] ~= r[INC] then
    record[D_EARLIER] = dead_earlier(dead, dead[D_REQUEST], dead[D_BACKGROUND])
    record[D_EARLIER_BIRTHS] = dead_earlier_births(dead)
    answers = dead[D_ANSWERS] or answers
  end
  record[D_ANSWERS] = dead_answers(unit_table(u, 'c') or {}, answers)
  DEAD[id] = cmsgpack.pack(record)
  unit_mark('deadtime', id, now)
  if background then
    DUE['delete:' .. id] = now
    unit_mark('busy', unit_later(u), 0)
  else
    bury_rest(u)
  end
  reply = { 'OK', 1, background and 1 or 0 }
elseif MISSING.deleting then
  if inc > 0 and inc ~= UNITS[id].r[INC] then
    reply = { 'NOT_FOUND' }
  else
    -- As good as the deletion that is under way.
    if dead and not repeats and request_id ~= '' then
      dead[D_EARLIER] = dead_earlier(dead, request_id, 1)
      DEAD[id] = cmsgpack.pack(dead)
    end
    reply = { 'OK', 1, 1 }
  end
elseif MISSING.damaged then
  reply = { 'DAMAGED' }
elseif repeats then
  reply = { 'OK', 1, dead[D_BACKGROUND] }
else
  reply = { 'OK', 0, 0 }
end
return { now, { reply }, unit_commit(server) }
