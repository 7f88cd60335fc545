--!include lease
-- A lease whose stream or server is gone: it ends after a grace unless a sign of life comes first.

local ORPHANED = 2

local function orphan_lease(u, now, grace_ms)
  local r = u.r
  if not has_bit(r[BITS], ORPHANED) then
    r[BITS] = r[BITS] + ORPHANED
    unit_touch(u)
  end
  if now + grace_ms < r[DEADLINE] then
    lease_deadline(u, now + grace_ms)
  end
end
