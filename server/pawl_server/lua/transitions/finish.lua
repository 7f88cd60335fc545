--- finish: saves the last step, completes the turn, admits its continuation and claims the next turn for the stream.
-- A repeat never claims anew; it hands out the turn its first execution claimed while nobody has received that.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms        int    engine time in virtual-time namespaces
-- @arg   server        str    run id of the caller
-- @arg   max_steps     int    steps allowed per turn
-- @arg   max_step      int    bytes of data allowed per step output
-- @arg   max_turn      int    stored bytes allowed per turn
-- @arg   max_state     int    bytes of data allowed as state
-- @arg   max_reply     int    bytes of data allowed as reply
-- @arg   max_message   int    bytes of data allowed as continuation
-- @arg   delivery_ms   int    time until a claimed turn must be received
-- @item  id            str    instance id
-- @item  inc           int    incarnation
-- @item  turn          int    turn number
-- @item  fence         int    fence of the lease
-- @item  n             int    command number
-- @item  digest        bytes  digest of the command
-- @item  has_step      bool   whether a last step comes with it
-- @item  key           str    step key
-- @item  kind          str    step kind
-- @item  output        bytes  output blob
-- @item  step_digest   bytes  digest of the step
-- @item  has_state     bool   whether the state changes
-- @item  state         bytes  state blob
-- @item  has_reply     bool   whether there is a reply
-- @item  result        bytes  reply blob
-- @item  has_next      bool   whether the turn continues
-- @item  next_digest   bytes  digest of the continuation
-- @item  next_message  bytes  continuation blob
-- @item  tv            str    type:version to claim next; empty to claim nothing
-- @item  conn          str    stream that gets the claimed turn; empty for none
-- @from  RUNNING
-- @to    COMPLETED
-- @from  CANCELLING
-- @to    CANCELLED
-- @reply OK(finished_ms int, continuation int, turns list) | ALREADY | GAP(last int) | BODY_CONFLICT | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | LIMIT_EXCEEDED(limit str, value int, max int) | WRONG_STATE(state str)
-- @emits ATTEMPT_STARTED, TURN_COMPLETED, TURN_ADMITTED, STEP_SAVED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, TURN_CANCELLED
-- @oom   allow
-- @spec  R-FINISH-1, R-FINISH-2, R-FINISH-3, R-FINISH-4, R-CMD-1, R-TRIM-4, R-CANCEL-7
--!include command step claim history limits commit

local now = meta_load(now_ms)

-- The turn that the first execution claimed, if it is still undelivered under that fence: delivered anew, to the stream
-- at hand, if there is one.
local function claimed_before(h, conn)
  if h[R_CLAIM_ID] == 0 or conn == '' then
    return {}
  end
  local u = settled_load(now, server, h[R_CLAIM_ID], 's')
  local over = lease_check(u, h[R_CLAIM_INC], h[R_CLAIM_TURN], h[R_CLAIM_FENCE])
  if over or has_bit(u.r[BITS], 1) or u.r[STATE] == CANCELLING then
    return {}
  end
  claim_prefetch(u)
  if u.r[CONN] ~= conn then
    tell_holder(u, u.r[CONN], u.r[HEAD], u.r[FENCE], 'superseded', server)
  end
  u.r[CONN], u.r[BITS] = conn, 0
  lease_deadline(u, now + delivery_ms)
  return { claim_view(u) }
end

local replies, finished = {}, {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id)
  local reply, receipt = command_begin(u, inc, turn, fence, n, digest, now)
  if not reply and u.r[STATE] == CANCELLING then
    -- The step has run, and what it gave stays readable.
    lease_accept(u, now)
    if has_step and not step_check(u, key, output, max_steps, max_step, max_turn) then
      local step = step_add(u, key, kind, output, step_digest, now)
      unit_set(u, turn .. '.' .. u.r[STEPS], cmsgpack.pack(step))
    end
    reply = command_cancel(u, now, server)
  elseif receipt then
    reply[4] = claimed_before(receipt, conn)
  elseif not reply then
    local r = u.r
    if has_step then
      reply = step_check(u, key, output, max_steps, max_step, max_turn)
    end
    if reply then
      -- The last step does not fit.
    elseif has_state and data_bytes(state) > max_state then
      reply = over('state_bytes', data_bytes(state), max_state)
    elseif has_reply and data_bytes(result) > max_reply then
      reply = over('reply_bytes', data_bytes(result), max_reply)
    elseif has_next and data_bytes(next_message) > max_message then
      reply = over('message_bytes', data_bytes(next_message), max_message)
    end
    if reply then
      lease_alive(u, now)
    else
      lease_accept(u, now)
      local last = has_step and step_add(u, key, kind, output, step_digest, now) or 0
      local bytes = r[BYTES] + (has_reply and #result or 0)
      local h = { 1, COMPLETED, now, r[ATTEMPT], r[STEPS], bytes, fence, n, digest, 0, 0, 0, 0, 0, has_reply and result or 0, last }
      if has_state then
        unit_set(u, 's', state)
      end
      if r[STEPS] > 1 or not has_step and r[STEPS] > 0 then
        unit_set(u, 'k', false)
      end
      if r[OP] > 0 then
        operation_drop(u)
      end
      if r[FAILURES] + r[LOST] > 0 then
        unit_set(u, turn .. '.f', false)
      end
      r[KBYTES] = r[KBYTES] + bytes
      command_end(u, HOW_COMPLETED, server)
      transition(u, COMPLETED)
      notify_awaiting(u, turn, server)
      inbox_advance(u, now, server)
      ledger_add(u, TURN_COMPLETED, now, turn, COMPLETED, nil, h[R_ATTEMPTS])
      if has_next then
        settle_before_admission(u, now, server)
        local from = (unit_table(u, turn .. '.m') or { 1, '' })[2]
        h[R_NEXT] = inbox_admit(u, now, server, 'continue-' .. turn, next_digest, next_message, '', turn, from)
      end
      reply = { 'OK', now, h[R_NEXT], {} }
      u.finished = u.finished or {}
      u.finished[turn] = h
      finished[#finished + 1] = { u, h, turn, tv, conn, reply }
    end
  end
  replies[#replies + 1] = reply
end

for i = 1, #finished do
  local u, h, turn, tv, conn, reply = unpack(finished[i])
  if tv ~= '' then
    local view = claim_next(tv, now, server, conn, delivery_ms)
    if view then
      h[R_CLAIM_ID], h[R_CLAIM_INC], h[R_CLAIM_TURN], h[R_CLAIM_FENCE] = view[1], view[2], view[3], view[4]
      reply[4] = { view }
    else
      WAITERS[tv] = now + WAIT_MS
    end
    ready_close(tv, now)
  end
  unit_set(u, turn .. '.h', cmsgpack.pack(h))
  history_moved(u, now)
end
return { now, replies, unit_commit(server) }
