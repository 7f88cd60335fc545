--!include unit
-- What turns have received: signals and results of callbacks. `<turn>.g` is a msgpack array of the format version and one entry
-- each, in order of arrival; `<turn>.g.<number>` is the value of one that nothing has consumed, until the turn's payloads are
-- trimmed. `g:<signal id>` is the turn that a signal to the instance went to.

local G_ID = 1 -- empty for a callback
local G_NAME = 2 -- empty for a callback
local G_CALLBACK = 3 -- key of the callback; empty for a signal
local G_DIGEST = 4
local G_AT = 5 -- engine ms of receipt
local G_POSITION = 6 -- step that consumed it; 0 while it is buffered
local G_REJECTED = 7 -- 1 for a callback whose value is a failure
local G_SENDER = 8
local G_CLASS = 9
local G_BYTES = 10 -- of the value
local G_BITS = 11 -- 1 sent to the instance, 2 consumed as it came

-- What a turn has received; nil if nothing, or if it can't be read. Queries ask this of packed records, too, which have lost
-- their last zeros.
local function signals_of(u, turn)
  return (u.r[SIGNALLED] or 0) > 0 and unit_table(u, turn .. '.g') or nil
end

-- Field of the value of an entry.
local function signal_field(turn, at)
  return turn .. '.g.' .. at - 1
end

-- Bytes of the values that a turn has not consumed.
--!rare
local function signals_bytes(u, turn)
  local g, bytes = signals_of(u, turn) or {}, 0
  for at = 2, #g do
    if g[at][G_POSITION] == 0 then
      bytes = bytes + g[at][G_BYTES]
    end
  end
  return bytes
end

-- Drops the values that nothing has consumed; what answers repeats stays.
local function signals_drop(u, turn)
  local g = signals_of(u, turn) or {}
  for at = 2, #g do
    if g[at][G_POSITION] == 0 then
      unit_set(u, signal_field(turn, at), false)
    end
  end
end

-- Gives what was sent to the next turn to the one after it, as another message takes its number.
local function signals_move(u, turn, to)
  local g = signals_of(u, turn)
  for at = 2, g and #g or 0 do
    unit_set(u, signal_field(to, at), unit_get(u, signal_field(turn, at)))
    unit_set(u, signal_field(turn, at), false)
    unit_set(u, 'g:' .. g[at][G_ID], string.format('%.0f', to))
  end
  if g then
    unit_set(u, to .. '.g', unit_get(u, turn .. '.g'))
    unit_set(u, turn .. '.g', false)
  end
end

-- Forgets what a turn has received.
local function signals_forget(u, turn)
  local g = signals_of(u, turn)
  for at = 2, g and #g or 0 do
    if has_bit(g[at][G_BITS], 1) then
      unit_set(u, 'g:' .. g[at][G_ID], false)
    end
  end
  if g then
    unit_set(u, turn .. '.g', false)
    u.r[SIGNALLED] = u.r[SIGNALLED] - 1
  end
end
