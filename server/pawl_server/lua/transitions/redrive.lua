--- redrive: sends the message of a parked turn again as a new turn, or drops it.
-- @keyspace meta i e feed type l x dead parked failed damaged ready types due busy waiting ch
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   id          str    instance id
-- @arg   inc         int    incarnation; 0 for any
-- @arg   turn        int    turn number
-- @arg   discard     bool   drops the message
-- @arg   max_pending int    unfinished turns and ended ones between them allowed for internal admissions
-- @arg   request_id  str    idempotency id; may be empty
-- @arg   digest      bytes  digest of the request
-- @arg   comment     str    text for the ledger
-- @from  PARKED
-- @to    PARKED
-- @reply OK(turn int) | BODY_CONFLICT | NOT_FOUND | PRUNED | WRONG_STATE(state int, attempt int) | LIMIT_EXCEEDED(limit str, value int, max int)
-- @emits TURN_REDRIVEN, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   deny
-- @spec  R-PARK-2, R-CONTROL-1, R-CONTROL-2, R-CONTROL-3
--!include control limits commit

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, inc, request_id, digest)

-- The turn is read further on, without what was sent.
local function drop_message(u, h)
  local sent = unit_table(u, turn .. '.m')
  if sent then
    local bytes = #unit_get(u, turn .. '.m')
    sent[4] = ''
    local packed = cmsgpack.pack(sent)
    unit_set(u, turn .. '.m', packed)
    h[R_BYTES] = h[R_BYTES] - bytes + #packed
    u.r[KBYTES] = u.r[KBYTES] - bytes + #packed
  end
end

local kept = u and unit_table(u, turn .. '.p')
local m
if kept then
  local ok, message = pcall(cmsgpack.unpack, kept[2])
  m = ok and type(message) == 'table' and message or nil
end
if kept and not m and not discard then
  reply = { 'DAMAGED' }
elseif not reply and not kept then
  local state
  state, reply = control_turn(u, turn)
  reply = reply or { 'WRONG_STATE', state, 0 }
elseif not reply and not discard and u.r[TAIL] - u.r[HEAD] + 1 >= max_pending then
  reply = over('pending_messages', u.r[TAIL] - u.r[HEAD] + 2, max_pending)
end
if not reply then
  local r = u.r
  local admitted = 0
  unit_clear(u, turn .. '.p')
  unit_mark('parked', string.format('%s:%016.0f', unit_member(u), turn), false)
  r[PARKED_TURNS] = r[PARKED_TURNS] - 1
  if not discard then
    settle_before_admission(u, now, server)
    admitted = inbox_admit(u, now, server, string.format('pawl-redrive-%.0f', turn), m[3], m[4], '', turn, m[2], true, 0)
  end
  local h = receipt_get(u, turn)
  if h then
    h[R_NEXT] = admitted
    if discard then
      drop_message(u, h)
    end
    unit_set(u, turn .. '.h', cmsgpack.pack(h))
  end
  ledger_add(u, TURN_REDRIVEN, now, turn, PARKED, admitted, 0)
  reply = control_answer(u, request_id, digest, { 'OK', admitted })
end
return { now, { reply }, unit_commit(server) }
