-- Field of `dead`: what is remembered of a deleted instance for a day, a msgpack array. `deadtime` lists them by time.

local D_INC = 2
local D_TURN = 3 -- newest turn
local D_SEQ = 4 -- newest ledger event
local D_TIME = 5 -- engine ms
local D_REQUEST = 6 -- request id of the deletion
local D_BORN_REQUEST = 7 -- request id of the creation
local D_IDS = 8 -- the last message ids, as dead_id gives them
local D_BACKGROUND = 9 -- whether the deletion went on in the background
local D_EARLIER = 10 -- further deletions, newest first: request id and whether that went on in the background, alternately
local D_EARLIER_BIRTHS = 11 -- request ids of the creation of earlier lives, newest first
local D_ANSWERS = 12 -- the last answers of control calls, newest first: request id as dead_id gives it, digest, reply
local DEAD_KEEP_MS = 86400000
local DEAD_KEEP_REQUESTS = 8

-- What stands for the id of a message or a request in a list of them.
local function dead_id(id)
  return string.sub(redis.sha1hex(id), 1, 12) .. '\0'
end

-- The last life of an id, if it was deleted within the last day.
--!rare
local function dead_get(id, now)
  local raw = redis.call('HGET', T .. 'dead', id)
  local ok, dead = false, nil
  if raw then
    ok, dead = pcall(cmsgpack.unpack, raw)
  end
  return ok and type(dead) == 'table' and now - dead[D_TIME] < DEAD_KEEP_MS and dead or nil
end

-- Puts values before those of a list, which keeps so many of all.
local function dead_list(list, keep, ...)
  local kept = { ... }
  for i = 1, math.min(#list, keep - #kept) do
    kept[#kept + 1] = list[i]
  end
  return kept
end

-- The earlier deletions, with one more.
local function dead_earlier(dead, request_id, background)
  local earlier = dead[D_EARLIER] or {}
  return request_id == '' and earlier or dead_list(earlier, 2 * DEAD_KEEP_REQUESTS, request_id, background)
end

-- The creations of earlier lives, once the life itself is one of them.
local function dead_earlier_births(dead)
  local births, request_id = dead[D_EARLIER_BIRTHS] or {}, dead[D_BORN_REQUEST]
  return request_id == '' and births or dead_list(births, DEAD_KEEP_REQUESTS, request_id)
end

-- Whether an earlier deletion than the newest one had that request id: nil, or whether it went on in the background.
local function dead_repeats(dead, request_id)
  local earlier = dead and request_id ~= '' and dead[D_EARLIER] or {}
  for i = 1, #earlier, 2 do
    if earlier[i] == request_id then
      return earlier[i + 1]
    end
  end
  return nil
end

-- Whether a life that is remembered was created by that request.
local function dead_born_by(dead, request_id)
  if not dead or request_id == '' then
    return false
  end
  for _, earlier in ipairs(dead[D_EARLIER_BIRTHS] or {}) do
    if earlier == request_id then
      return true
    end
  end
  return dead[D_BORN_REQUEST] == request_id
end

-- The control answers of a life that ends, before those of earlier ones; `answers` is its field `c`.
local function dead_answers(answers, earlier)
  local kept = {}
  for i = 2, #answers do
    local answer = answers[i]
    kept[#kept + 1] = dead_id(answer[1])
    kept[#kept + 1] = answer[2]
    kept[#kept + 1] = answer[3]
  end
  return dead_list(earlier, 3 * DEAD_KEEP_REQUESTS, unpack(kept))
end

-- The answer that a control call got from a life that is remembered; nil if it got none.
local function dead_answer(dead, request_id, digest)
  local answers = dead and dead[D_ANSWERS] or {}
  local known = #answers > 0 and dead_id(request_id)
  for i = 1, #answers, 3 do
    if answers[i] == known then
      return answers[i + 1] == digest and answers[i + 2] or { 'BODY_CONFLICT' }
    end
  end
  return nil
end
