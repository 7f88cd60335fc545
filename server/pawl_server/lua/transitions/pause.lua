--- pause: stops dispatch of an instance; the turn that runs may end.
-- @keyspace meta i e feed type l x dead failed paused damaged ready types due busy waiting ch parked
-- @arg   now_ms      int    engine time in virtual-time namespaces
-- @arg   server      str    run id of the caller
-- @arg   id          str    instance id
-- @arg   inc         int    incarnation; 0 for any
-- @arg   request_id  str    idempotency id; may be empty
-- @arg   digest      bytes  digest of the request
-- @arg   comment     str    text for the ledger
-- @reply OK(changed bool) | BODY_CONFLICT | NOT_FOUND
-- @emits PAUSED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   allow
-- @spec  R-PAUSE-1, R-PAUSE-2, R-CONTROL-1, R-CONTROL-2, R-CONTROL-3
--!include control commit

local now = meta_load(now_ms)
local u, reply = control_load(now, server, id, inc, request_id, digest)
if not reply then
  local changed = not has_bit(u.r[FLAGS], 1)
  if changed then
    if not HELD[u.r[STATE]] and u.r[STATE] ~= FAILED and u.r[STATE] ~= UNCERTAIN then
      make_unready(u)
    end
    u.r[FLAGS] = u.r[FLAGS] + 1
    unit_mark('paused', unit_member(u), 0)
    ledger_add(u, PAUSED, now, 0, 0, comment)
  end
  reply = control_answer(u, request_id, digest, { 'OK', changed and 1 or 0 })
end
return { now, { reply }, unit_commit(server) }
