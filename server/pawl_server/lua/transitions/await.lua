--- await: registers the calling server to be told when turns finish or fail for good.
-- @keyspace meta i e feed type ready types due busy waiting ch l x damaged parked failed
-- @arg   now_ms  int  engine time in virtual-time namespaces
-- @arg   server  str  run id of the caller
-- @item  id      str  instance id
-- @item  turn    int  turn number
-- @reply DONE | PENDING(passed bool) | NOT_FOUND
-- @emits TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-AWAIT-1
--!include settle notes commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, server, id, 'a')
  local reply
  if not u then
    reply = unit_absent()
  elseif turn > u.r[TAIL] or turn < 1 then
    reply = { 'NOT_FOUND' }
  elseif turn < u.r[HEAD] or (turn == u.r[HEAD] and (u.r[STATE] == FAILED or u.r[STATE] == UNCERTAIN)) or unit_get(u, turn .. '.h') then
    reply = { 'DONE' }
  else
    note_waiting(u, server)
    -- Whether turns have ended while the head has not.
    reply = { 'PENDING', u.r[TAIL] - u.r[HEAD] + 1 > u.r[PENDING] and 1 or 0 }
  end
  replies[#replies + 1] = reply
end
return { now, replies, unit_commit(server) }
