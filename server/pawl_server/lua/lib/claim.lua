--!include lease retry inbox signal
-- Leases the next heads of a type:version to a stream.

-- The new lease; the receipts of the one before move to the P fields.
local function lease_open(u, now, conn, delivery_ms)
  local r = u.r
  r[PFENCE], r[PHOW], r[PN], r[PDIGEST] = r[FENCE], r[HOW], r[N], r[DIGEST]
  r[PWORD], r[PANSWER1], r[PANSWER2] = r[WORD], r[ANSWER1], type(r[ANSWER2]) == 'number' and r[ANSWER2] or 0
  r[FENCE] = meta_fence()
  r[CONN], r[LEASED], r[BITS], r[HOW] = conn ~= '' and conn or 0, now, 0, 0
  r[N], r[DIGEST], r[WORD], r[ANSWER1], r[ANSWER2] = 0, 0, 0, 0, 0
  transition(u, RUNNING)
  lease_deadline(u, now + delivery_ms)
end

-- What the worker gets: id, incarnation, turn, fence, attempt, max attempts, lease ms, attempt timeout ms, message record,
-- state blob, failure record, steps, type:version, engine ms of the claim, registered step of an earlier attempt.
local function claim_view(u)
  local r = u.r
  local steps = {}
  for position = 1, r[STEPS] do
    steps[position] = unit_get(u, r[HEAD] .. '.' .. position)
  end
  return {
    u.id,
    r[INC],
    r[HEAD],
    r[FENCE],
    r[FAILURES] + r[LOST] + 1,
    max_attempts(u),
    lease_ms(u),
    type_load(unit_type(u))[ATTEMPT_TIMEOUT_MS],
    unit_get(u, r[HEAD] .. '.m'),
    unit_get(u, 's') or '',
    r[FAILURES] + r[LOST] > 0 and unit_get(u, r[HEAD] .. '.f') or '',
    steps,
    u.tv,
    r[LEASED],
    r[OP] > 0 and unit_get(u, r[HEAD] .. '.o') or '',
    r[TOTAL_AT] > 0 and math.max(1, r[TOTAL_AT] - META.now) or 0,
  }
end

-- Reads everything the view of a turn that was worked on needs in one command.
local function claim_prefetch(u)
  local r = u.r
  if r[STEPS] == 0 and r[FAILURES] + r[LOST] + r[OP] == 0 then
    return
  end
  local fields = { r[HEAD] .. '.m', r[HEAD] .. '.f', r[HEAD] .. '.o' }
  for position = 1, r[STEPS] do
    fields[position + 3] = r[HEAD] .. '.' .. position
  end
  local v = redis.call('HMGET', u.key, unpack(fields))
  for i = 1, #fields do
    u.cache[fields[i]] = v[i]
  end
end

-- Leases one head; the view, or nil when nothing of this type:version is ready.
local function claim_next(tv, now, server, conn, delivery_ms)
  for _ = 1, 64 do
    local id = ready_next(tv)
    if not id then
      return nil
    end
    local u = settled_load(now, server, id, 's')
    if u then
      settle_before_claim(u, now, server)
    end
    ready_open(tv).change[id] = false
    if u then
      local r = u.r
      if u.tv == tv and r[STATE] == QUEUED and not has_bit(r[FLAGS], 1) then
        claim_prefetch(u)
        local message = unit_get(u, r[HEAD] .. '.m')
        if message then
          if r[BYTES] == 0 then
            r[BYTES] = #message + (r[SIGNALLED] > 0 and signals_bytes(u, r[HEAD]) or 0)
          end
          lease_open(u, now, conn, delivery_ms)
          return claim_view(u)
        end
        unit_mark('damaged', 'i:' .. id, now)
      end
    end
  end
  return nil
end

local function claim_bytes(view)
  local bytes = #view[9] + #view[10] + #view[11] + #view[15]
  for i = 1, #view[12] do
    bytes = bytes + #view[12][i]
  end
  return bytes
end
