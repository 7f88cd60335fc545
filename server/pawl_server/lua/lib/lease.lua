--!include settle ends ledger type receipt
-- Leases: who holds the head, until when, and how that ended. A lease ends only by a script that ends it; being past the
-- deadline does not.

local function lease_ms(u)
  if has_bit(u.r[FLAGS], 16) and unit_birth(u)[4] > 0 then
    return unit_birth(u)[4]
  end
  return type_load(unit_type(u))[LEASE_MS]
end

-- The number of the decision that gave a stream its lease: see WorkHello.stream_ordinal.
local function lease_ordinal(conn)
  return conn ~= 0 and tonumber(string.match(conn, '^[^.]*%.(%d+)')) or 0
end

local function lease_deadline(u, deadline)
  u.r[DEADLINE] = deadline
  DUE['lease:' .. u.id] = deadline
  unit_touch(u)
end

-- Receives the delivery, which begins an attempt unless the turn resumes one, and undoes an orphaning.
local function lease_accept(u, now)
  local r = u.r
  if r[BITS] ~= 1 then
    local attempt = r[FAILURES] + r[LOST] + 1
    if not has_bit(r[BITS], 1) and r[ATTEMPT] ~= attempt then
      r[ATTEMPT] = attempt
      ledger_add(u, ATTEMPT_STARTED, now, r[HEAD], r[STATE])
      settle_begun(u, now)
    end
    r[BITS] = 1
    unit_touch(u)
  end
end

-- Any sign of life under the current fence: accepts, and extends the lease when less than two thirds of it are left. The
-- attempt timeout is a ceiling, and so are the total deadline and the end of the grace of a turn that is to be cancelled.
local function lease_alive(u, now)
  local r = u.r
  local term = lease_ms(u)
  local bits = r[BITS]
  lease_accept(u, now)
  if bits ~= 1 or r[DEADLINE] < now + term * 2 / 3 then
    local ceiling = r[LEASED] + type_load(unit_type(u))[ATTEMPT_TIMEOUT_MS]
    if r[CANCEL_AT] > 0 or r[TOTAL_AT] > 0 then
      ceiling = math.min(ceiling, r[CANCEL_AT] > 0 and r[CANCEL_AT] or r[TOTAL_AT])
    end
    local deadline = math.min(now + term, ceiling)
    if deadline ~= r[DEADLINE] then
      lease_deadline(u, deadline)
    end
  end
end

-- What is left of the grace of a turn that is to be cancelled; 0 for any other.
local function lease_grace(u, now)
  return u.r[CANCEL_AT] > 0 and math.max(1, u.r[CANCEL_AT] - now) or 0
end

-- Whether the lease named by the caller is current. nil if it is; otherwise the reply.
local function lease_check(u, inc, turn, fence)
  if not u then
    return unit_absent()
  end
  local r = u.r
  if r[INC] ~= inc then
    return { 'STALE_FENCE' }
  end
  if turn == r[HEAD] then
    if fence <= 0 then
      return { 'STALE_FENCE' }
    elseif fence == r[FENCE] then
      if r[HOW] == 0 then
        return nil
      end
      return { 'LEASE_ENDED', ENDINGS[r[HOW]] }
    elseif fence == r[PFENCE] then
      return { 'LEASE_ENDED', ENDINGS[r[PHOW]] }
    end
  elseif turn < r[HEAD] and fence > 0 then
    local h = receipt_get(u, turn)
    if h and h[R_FENCE] == fence then
      return { 'LEASE_ENDED', receipt_how(h) }
    end
  end
  return { 'STALE_FENCE' }
end
