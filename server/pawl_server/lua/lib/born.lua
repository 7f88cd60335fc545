--!include ledger dead
-- A new instance.

-- Adds the instance to one index by creation.
local function born_index(name, id, now)
  local index = INDEX[name] or {}
  index[#index + 1] = now
  index[#index + 1] = id
  INDEX[name] = index
end

-- `words` is the correlation key and the tags, each followed by a zero byte. `dead` is the last life of the id, if any:
-- turns and events go on counting from there.
--!rare
local function born(id, now, type, version, digest, state, lease_ms, max_attempts, retry, words, request_id, dead)
  local u = UNITS[id]
  u.r = record_new(meta_incarnation(), 1)
  if dead then
    u.r = record_new(u.r[INC], dead[D_TURN] + 1)
    u.r[SEQ] = dead[D_SEQ]
  end
  if lease_ms > 0 or max_attempts > 0 or retry ~= '' then
    u.r[FLAGS] = 16
  end
  u.birth = { 1, now, digest, lease_ms, max_attempts }
  if words ~= '' or request_id ~= '' or dead or retry ~= '' then
    u.birth[6], u.birth[7] = words, request_id
    u.birth[8], u.birth[9] = u.r[HEAD], u.r[SEQ] + 1
  end
  if retry ~= '' then
    u.birth[10] = retry
  end
  u.tv = type .. ':' .. version
  unit_set(u, 'y', u.tv)
  unit_set(u, 'o', cmsgpack.pack(u.birth))
  if #state > 0 then
    unit_set(u, 's', state)
  end
  if not INDEX['ids:' .. type] then
    born_index('typeindex', type, 0)
  end
  local names = unit_indexes(type, words)
  for i = 1, #names do
    born_index(names[i], id, now)
  end
  ledger_add(u, CREATED, now, 0, 0)
  return u
end
