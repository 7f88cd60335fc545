--!include ledger
-- A new instance. `y` is a msgpack array (version, type, code version, engine ms, create digest, lease ms, max attempts).

local function born(id, now, type, version, digest, state, lease_ms, max_attempts)
  local u = UNITS[id]
  u.r = record_new(meta_incarnation(), 1)
  u.y = { 1, type, version, now, digest, lease_ms, max_attempts }
  u.tv = type .. ':' .. version
  u.settled = true
  unit_set(u, 'y', cmsgpack.pack(u.y))
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
