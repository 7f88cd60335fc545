--!include unit states
-- Receipt `<turn>.h` of a finished turn: a msgpack array. Message id, digest and admission are set when the payloads are
-- trimmed, at which time reply and last step are emptied; until then `<turn>.m` has them.

local R_STATE = 2
local R_FINISHED = 3
local R_ATTEMPTS = 4
local R_STEPS = 5
local R_BYTES = 6
local R_FENCE = 7
local R_N = 8
local R_DIGEST = 9
local R_NEXT = 10 -- turn of the continuation; 0 if none
local R_CLAIM_ID = 11 -- the turn claimed by the finish: instance, incarnation, turn, fence
local R_CLAIM_INC = 12
local R_CLAIM_TURN = 13
local R_CLAIM_FENCE = 14
local R_REPLY = 15 -- blob; 0 if none
local R_LAST_STEP = 16 -- step record saved by the finish itself; 0 if none
local R_MESSAGE_ID = 17
local R_MESSAGE_DIGEST = 18
local R_ADMITTED = 19
-- Of turns that ended otherwise than by a finish: the answer to the last command. The three above are then 0 until trimmed.
local R_WORD = 20
local R_ANSWER1 = 21
local R_ANSWER2 = 22
local R_HOW = 23 -- how its newest lease ended, see ENDINGS

-- The receipt of a finished turn as this script sees it; nil if it was trimmed, can't be read, or there never was one.
local function receipt_get(u, turn)
  local h = unit_table(u, turn .. '.h')
  if h and type(h[R_FINISHED]) == 'number' and type(h[R_STEPS]) == 'number' and type(h[R_BYTES]) == 'number' then
    return h
  end
  return u.finished and u.finished[turn]
end

-- How the newest lease of a finished turn ended.
local function receipt_how(h)
  return h[R_STATE] == COMPLETED and 'completed' or ENDINGS[h[R_HOW]]
end
