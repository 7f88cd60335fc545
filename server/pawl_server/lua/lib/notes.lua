--!include unit
-- Servers that wait for a turn of an instance: field `a`, run ids between commas, with flag 8. Any end uses the note up.

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

-- Tells all of them but the caller that a turn has ended.
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
