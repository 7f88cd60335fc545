--!include ledger
-- A new instance.

local function born(id, now, type, version, digest, state, lease_ms, max_attempts)
  local u = UNITS[id]
  u.r = record_new(meta_incarnation(), 1)
  if lease_ms > 0 or max_attempts > 0 then
    u.r[FLAGS] = 16
  end
  u.birth = { 1, now, digest, lease_ms, max_attempts }
  u.tv = type .. ':' .. version
  u.settled = true
  unit_set(u, 'y', u.tv)
  unit_set(u, 'o', cmsgpack.pack(u.birth))
  if #state > 0 then
    unit_set(u, 's', state)
  end
  local index = INDEX[type] or {}
  index[#index + 1] = now
  index[#index + 1] = id
  INDEX[type] = index
  ledger_add(u, CREATED, now, 0, 0)
  return u
end
