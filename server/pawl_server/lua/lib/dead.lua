-- Field of `dead`: what is remembered of a deleted instance for a day, a msgpack array. `deadtime` lists them by time.

local D_INC = 2
local D_TURN = 3 -- newest turn
local D_SEQ = 4 -- newest ledger event
local D_TIME = 5 -- engine ms
local D_REQUEST = 6 -- request id of the deletion
local D_BORN_REQUEST = 7 -- request id of the creation
local D_IDS = 8 -- the last message ids, as dead_id gives them
local D_BACKGROUND = 9 -- whether the deletion went on in the background
local DEAD_KEEP_MS = 86400000

-- What stands for a message id in a list of them.
local function dead_id(message_id)
  return string.sub(redis.sha1hex(message_id), 1, 12) .. '\0'
end

-- The last life of an id, if it was deleted within the last day.
local function dead_get(id, now)
  local raw = redis.call('HGET', T .. 'dead', id)
  local ok, dead = false, nil
  if raw then
    ok, dead = pcall(cmsgpack.unpack, raw)
  end
  return ok and type(dead) == 'table' and now - dead[D_TIME] < DEAD_KEEP_MS and dead or nil
end
