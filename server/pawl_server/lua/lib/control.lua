--!include settle receipt dead
-- Control calls: field `c` is a msgpack array of format version and the last 8 answers, newest first, each an array of request
-- id, digest and the reply.

local KEPT_ANSWERS = 8

-- The answer that the same request got before; nil if there is none.
local function control_before(u, request_id, digest)
  local answers = request_id ~= '' and unit_table(u, 'c') or {}
  for i = 2, #answers do
    if answers[i][1] == request_id then
      return answers[i][2] == digest and answers[i][3] or { 'BODY_CONFLICT' }
    end
  end
  return nil
end

-- Keeps an answer, and gives it.
local function control_answer(u, request_id, digest, reply)
  if request_id ~= '' then
    local answers = unit_table(u, 'c') or { 1 }
    table.insert(answers, 2, { request_id, digest, reply })
    answers[KEPT_ANSWERS + 2] = nil
    unit_set(u, 'c', cmsgpack.pack(answers))
  end
  return reply
end

-- The instance of a control call, or the reply: answered before by this life or one that was deleted, absent, or another
-- life.
local function control_load(now, server, id, inc, request_id, digest)
  local u = settled_load(now, server, id, 'c')
  local refusal, before
  if not u then
    refusal = unit_absent()
  elseif inc > 0 and inc ~= u.r[INC] then
    refusal = { 'NOT_FOUND' }
  else
    before = control_before(u, request_id, digest)
  end
  if not before and request_id ~= '' and not MISSING.damaged then
    before = dead_answer(dead_get(id, now), request_id, digest)
  end
  if before or refusal then
    return nil, before or refusal
  end
  return u
end

-- The state of a turn, or nil and the reply.
local function control_turn(u, turn)
  local r = u.r
  if turn < 1 or turn > r[TAIL] then
    return nil, { 'NOT_FOUND' }
  elseif turn == r[HEAD] and r[STATE] ~= BEHIND then
    return r[STATE]
  end
  local h = receipt_get(u, turn)
  if h then
    return h[R_STATE]
  elseif turn < r[HEAD] then
    return nil, { 'PRUNED' }
  end
  return QUEUED
end

-- The refusal for a turn that had to have failed, with the attempt that the caller saw; nil if it did.
local function control_failed(u, turn, attempt)
  local state, refusal = control_turn(u, turn)
  if not state then
    return refusal
  elseif state ~= FAILED then
    return { 'WRONG_STATE', state, 0 }
  elseif attempt > 0 and attempt ~= u.r[ATTEMPT] then
    return { 'WRONG_STATE', state, u.r[ATTEMPT] }
  end
  return nil
end
