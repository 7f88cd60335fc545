--!include operation
-- How leases end.

local HOW_COMPLETED = 1
local HOW_FAILED = 2
local HOW_RELEASED = 3
local HOW_EXPIRED = 4
local HOW_LOST = 5
local HOW_RETURNED = 6
local HOW_SLEEPING = 7
local HOW_DEFERRED = 8
local HOW_WAITING = 10

-- Ends the lease: the record keeps its receipts.
local function lease_end(u, how)
  local r = u.r
  DUE['lease:' .. u.id] = false
  if r[OP] > OP_LEFT then
    operation_rest(u)
  end
  r[HOW] = how
  r[CONN] = 0
  r[DEADLINE] = 0
  r[BITS] = 0
  unit_touch(u)
end
