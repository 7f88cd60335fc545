--!include unit limits ledger operation
-- Saved steps: `<turn>.<position>` is a msgpack array (version, key, kind, blob, digest, engine ms, attempt, and
-- where needed: outcome of the wait, 1 if somebody else than its worker said what it gave); `k` lists the
-- keys of the head turn, each between zero bytes, so that a key can't be saved twice.

-- The refusal, or nil and the new key list.
local function step_check(u, key, blob, max_steps, max_step, max_turn)
  local r = u.r
  if r[STEPS] >= max_steps then
    return over('steps_per_turn', r[STEPS] + 1, max_steps)
  elseif data_bytes(blob) > max_step then
    return over('step_output_bytes', data_bytes(blob), max_step)
  elseif r[BYTES] + #blob > max_turn then
    return over('turn_bytes', r[BYTES] + #blob, max_turn)
  end
  local keys = r[STEPS] > 0 and unit_get(u, 'k') or '\0'
  if string.find(keys, '\0' .. key .. '\0', 1, true) then
    return { 'WRONG_STATE', 'step_saved' }
  end
  return nil, keys .. key .. '\0'
end

-- Counts the step and gives its record. `state` is that of the turn after it, the present one if it is left out.
local function step_add(u, key, kind, blob, digest, now, state)
  local r = u.r
  r[STEPS] = r[STEPS] + 1
  r[BYTES] = r[BYTES] + #blob
  if r[OP] > 0 then
    operation_drop(u)
  end
  ledger_add(u, STEP_SAVED, now, r[HEAD], state or r[STATE], { key, r[STEPS] })
  return { 1, key, kind, blob, digest, now, r[ATTEMPT] }
end
