--!include unit
-- What servers are told. Those that wait for a turn of an instance are in field `a`, run ids between commas, with flag 8;
-- any end uses the note up.

local AWAITED = 8

-- Notes that a server waits.
local function note_waiting(u, server)
  local waiting = unit_get(u, 'a') or ''
  if not string.find(',' .. waiting .. ',', ',' .. server .. ',', 1, true) then
    unit_set(u, 'a', waiting == '' and server or waiting .. ',' .. server)
  end
  if not has_bit(u.r[FLAGS], AWAITED) then
    u.r[FLAGS] = u.r[FLAGS] + AWAITED
    unit_touch(u)
  end
end

-- Tells all of them but `server`, who learns from the reply, that a turn has ended.
local function notify_awaiting(u, turn, server)
  if not has_bit(u.r[FLAGS], AWAITED) then
    return
  end
  u.r[FLAGS] = u.r[FLAGS] - AWAITED
  local waiting = unit_get(u, 'a') or ''
  for run in string.gmatch(waiting, '[^,]+') do
    if run ~= server then
      PUBLISH[#PUBLISH + 1] = run
      PUBLISH[#PUBLISH + 1] = 'done ' .. turn .. ' ' .. u.id
    end
  end
  unit_set(u, 'a', false)
end

-- Tells the server that holds the stream of the head's lease that the turn is to be cancelled, and how much time is left.
local function tell_cancelling(u, grace_ms)
  local r = u.r
  if r[CONN] ~= 0 then
    PUBLISH[#PUBLISH + 1] = string.match(r[CONN], '^[^.]*')
    PUBLISH[#PUBLISH + 1] =
      string.format('cancelling %s %.0f %.0f %.0f %.0f %s', r[CONN], r[INC], r[HEAD], r[FENCE], grace_ms, u.id)
  end
end

-- Tells the server that holds the stream of a lease how it ended, or that another stream has it ("superseded"), unless that
-- is `server`, who learns from the reply.
local function tell_holder(u, conn, turn, fence, how, server)
  if conn ~= 0 and string.sub(conn, 1, #server + 1) ~= server .. '.' then
    PUBLISH[#PUBLISH + 1] = string.match(conn, '^[^.]*')
    PUBLISH[#PUBLISH + 1] = string.format('ended %s %.0f %.0f %.0f %s %s', conn, u.r[INC], turn, fence, how, u.id)
  end
end
