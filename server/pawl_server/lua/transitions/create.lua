--- create: makes instances that do not exist yet.
-- @keyspace meta i e feed type ids tag key dead ready types due busy waiting ch l x damaged parked failed typeindex
-- @arg   now_ms        int    engine time in virtual-time namespaces
-- @arg   max_state     int    bytes of state data allowed
-- @item  id            str    instance id
-- @item  type          str    workflow type
-- @item  version       str    code version
-- @item  digest        bytes  digest of type, version, state and settings
-- @item  state         bytes  initial state blob
-- @item  lease_ms      int    lease override; 0 for the type's
-- @item  max_attempts  int    attempts override; 0 for the type's
-- @item  retry         bytes  retry policy, see lib/policy.lua; empty for the type's
-- @item  words         bytes  correlation key and tags, each followed by a zero byte; empty for none
-- @item  request_id    str    idempotency id; may be empty
-- @reply OK(incarnation int, created_ms int, first_turn int, first_seq int) | BODY_CONFLICT(tv str) | INSTANCE_DELETED | LIMIT_EXCEEDED(limit str, value int, max int)
-- @emits CREATED, TURN_ADMITTED, TURN_EXPIRED, TURN_READY, ATTEMPT_EXPIRED, TURN_FAILED, TURN_PARKED, TURN_SKIPPED, TURN_UNCERTAIN, STEP_SAVED, TURN_CANCELLED
-- @oom   deny
-- @spec  R-CREATE-1, R-CREATE-2, R-DELETE-3
--!include born limits settle commit

local now = meta_load(now_ms)
local replies = {}
for at = FIRST, LAST, STRIDE do
  --!item
  local u = settled_load(now, '', id, 'o')
  if u then
    local birth = unit_birth(u)
    if birth.damaged then
      replies[#replies + 1] = { 'DAMAGED' }
    elseif birth[3] == digest then
      replies[#replies + 1] = { 'OK', u.r[INC], birth[2], birth[8] or 1, birth[9] or 1 }
    else
      replies[#replies + 1] = { 'BODY_CONFLICT', u.tv }
    end
  elseif MISSING.damaged then
    replies[#replies + 1] = { 'DAMAGED' }
  elseif MISSING.deleting then
    replies[#replies + 1] = { 'DELETING' }
  elseif data_bytes(state) > max_state then
    replies[#replies + 1] = over('state_bytes', data_bytes(state), max_state)
  else
    local dead = dead_get(id, now)
    if dead_born_by(dead, request_id) then
      replies[#replies + 1] = { 'INSTANCE_DELETED' }
    else
      u = born(id, now, type, version, digest, state, lease_ms, max_attempts, retry, words, request_id, dead)
      replies[#replies + 1] = { 'OK', u.r[INC], now, u.r[HEAD], u.r[SEQ] }
    end
  end
end
return { now, replies, unit_commit('') }
