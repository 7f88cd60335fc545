--- finish: saves the last step, completes the turn, admits its continuation and claims the next turn for the stream.
-- A repeat never claims anew; it hands out the turn its first execution claimed while nobody has received that.
-- @keyspace meta i e type ready types due busy waiting ch
-- @arg   now_ms        int    engine time in virtual-time namespaces
-- @arg   server        str    run id of the caller
-- @arg   max_steps     int    steps allowed per turn
-- @arg   max_step      int    bytes allowed per step output
-- @arg   max_turn      int    bytes allowed per turn
-- @arg   max_state     int    bytes allowed as state
-- @arg   max_reply     int    bytes allowed as reply
-- @arg   max_message   int    bytes allowed as continuation
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
-- @item  conn          str    stream that gets the claimed turn
-- @from  RUNNING
-- @to    COMPLETED
-- @reply OK(finished_ms int, continuation int, turns list) | ALREADY | GAP(last int) | BODY_CONFLICT | NOT_FOUND | STALE_FENCE | LEASE_ENDED(how str) | LIMIT_EXCEEDED(limit str, value int, max int) | WRONG_STATE(state str)
-- @emits ATTEMPT_STARTED, TURN_COMPLETED, TURN_ADMITTED
-- @oom   allow
-- @spec  R-FINISH-1, R-FINISH-2, R-FINISH-3, R-FINISH-4, R-CMD-1
--!include command step claim history limits

local now = meta_load(now_ms)

-- The turn that the first execution claimed, if it is still undelivered under that fence.
local function claimed_before(h, conn)
  if not h or h[14] == '' then
    return {}
  end
  local u = settled_load(now, server, h[14], 's')
  if not u or lease_check(u, h[15], h[16], h[17]) or has_bit(u.r[BITS], 1) then
    return {}
  end
  claim_prefetch(u)
  u.r[CONN] = conn
  unit_touch(u)
  return { claim_view(u) }
end

local replies, finished = {}, {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id, 'k', 'a')
  local reply, receipt = command_check(u, inc, turn, fence, n, digest)
  if receipt then
    reply[4] = claimed_before(receipt, conn)
  elseif not reply then
    local r = u.r
    lease_alive(u, now)
    if has_step then
      reply = step_check(u, key, output, max_steps, max_step, max_turn)
    end
    if not reply and has_state and #state > max_state then
      reply = over('state_bytes', #state, max_state)
    elseif not reply and has_reply and #result > max_reply then
      reply = over('reply_bytes', #result, max_reply)
    elseif not reply and has_next and #next_message > max_message then
      reply = over('message_bytes', #next_message, max_message)
    end
    if not reply then
      if has_step then
        step_save(u, key, kind, output, step_digest, now)
      end
      local message = cmsgpack.unpack(unit_get(u, turn .. '.m'))
      local steps, attempt, failures = r[STEPS], r[ATTEMPT], r[FAILURES] + r[LOST]
      local bytes = r[BYTES] + (has_reply and #result or 0)
      if has_state then
        unit_set(u, 's', state)
      end
      if has_reply then
        unit_set(u, turn .. '.r', result)
      end
      if steps > 0 then
        unit_set(u, 'k', false)
      end
      if failures > 0 then
        unit_set(u, turn .. '.f', false)
      end
      r[KBYTES] = r[KBYTES] + bytes
      lease_end(u, HOW_COMPLETED)
      transition(u, COMPLETED)
      ledger_add(u, TURN_COMPLETED, now, turn, COMPLETED)
      inbox_advance(u, now, server)
      local continuation = 0
      if has_next then
        continuation =
          inbox_admit(u, now, server, 'continue-' .. turn, next_digest, next_message, '', turn, message[2])
      end
      notify_awaiting(u, turn, server)
      local h = { 1, COMPLETED, message[2], message[3], message[6], now, attempt, steps, bytes, fence, n, digest, continuation, '', 0, 0, 0 }
      finished[#finished + 1] = { u = u, h = h, field = turn .. '.h', tv = tv, conn = conn }
      unit_set(u, turn .. '.h', cmsgpack.pack(h))
      reply = { 'OK', now, continuation, {} }
      finished[#finished].reply = reply
    end
  end
  replies[#replies + 1] = reply
end

for i = 1, #finished do
  local f = finished[i]
  history_finish(f.u, now)
  if f.tv ~= '' then
    local view = claim_next(f.tv, now, server, f.conn, delivery_ms)
    if view then
      f.h[14], f.h[15], f.h[16], f.h[17] = view[1], view[2], view[3], view[4]
      unit_set(f.u, f.field, cmsgpack.pack(f.h))
      f.reply[4] = { view }
    else
      WAITERS[f.tv] = now + WAIT_MS
    end
    ready_close(f.tv, now)
  end
end
return { now, replies, unit_commit(server) }
