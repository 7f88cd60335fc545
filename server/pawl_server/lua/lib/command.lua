--!include lease notes
-- Numbered commands of a lease: 1, 2, 3 ..., each with a digest. A repeat gives the first answer; nothing is applied twice.

local WORD_CHECKPOINT = 1
local WORD_FAIL = 2
local WORD_RELEASE = 3
local WORD_SLEEP = 4
local WORD_DEFER = 5
local WORD_WAIT = 6 -- the lease ended with it
local WORD_SIGNAL = 7 -- a wait that was over at once

-- What a wait that was over at once has given: its step has the value, until that is trimmed.
local function command_received(u, turn, position, outcome)
  local step = unit_table(u, turn .. '.' .. position)
  return step and { 'OK', position, 0, 0, outcome, step[4] } or { 'ALREADY' }
end

--!rare
local function command_repeat(u, turn, digest, last_digest, word, answer1, answer2)
  if digest ~= last_digest then
    return { 'BODY_CONFLICT' }
  elseif word == WORD_CHECKPOINT or word == WORD_DEFER then
    return { 'OK', answer1 }
  elseif word == WORD_FAIL or word == WORD_SLEEP then
    return { 'OK', answer1, answer2 }
  elseif word == WORD_WAIT then
    return { 'OK', answer1, 1, answer2, 0, '' }
  elseif word == WORD_SIGNAL then
    return command_received(u, turn, answer1, answer2)
  end
  return { 'OK' }
end

--!rare
local function command_finished(u, turn, fence, n, digest)
  local h = receipt_get(u, turn)
  if not h or h[R_FENCE] ~= fence or fence <= 0 then
    return { 'STALE_FENCE' }
  elseif n > h[R_N] then
    return { 'LEASE_ENDED', receipt_how(h) }
  elseif n < h[R_N] then
    return { 'ALREADY' }
  elseif h[R_STATE] ~= COMPLETED then
    return command_repeat(u, turn, digest, h[R_DIGEST], h[R_WORD], h[R_ANSWER1], h[R_ANSWER2])
  elseif digest ~= h[R_DIGEST] then
    return { 'BODY_CONFLICT' }
  end
  return { 'OK', h[R_FINISHED], h[R_NEXT] }, h
end

-- nil if the command is to be applied; otherwise the reply, and for a repeated finish its receipt.
local function command_check(u, inc, turn, fence, n, digest)
  if not u then
    return unit_absent()
  end
  local r = u.r
  if r[INC] ~= inc or turn > r[HEAD] then
    return { 'STALE_FENCE' }
  elseif turn < r[HEAD] then
    return command_finished(u, turn, fence, n, digest)
  elseif fence <= 0 then
    return { 'STALE_FENCE' }
  elseif fence == r[FENCE] then
    if n == r[N] and n > 0 then
      return command_repeat(u, turn, digest, r[DIGEST], r[WORD], r[ANSWER1], r[ANSWER2])
    elseif n < r[N] then
      return { 'ALREADY' }
    elseif r[HOW] ~= 0 then
      return { 'LEASE_ENDED', ENDINGS[r[HOW]] }
    elseif n ~= r[N] + 1 then
      return { 'GAP', r[N] }
    end
    return nil
  elseif fence == r[PFENCE] then
    if n == r[PN] and n > 0 then
      return command_repeat(u, turn, digest, r[PDIGEST], r[PWORD], r[PANSWER1], r[PANSWER2])
    elseif n < r[PN] then
      return { 'ALREADY' }
    end
    return { 'LEASE_ENDED', ENDINGS[r[PHOW]] }
  end
  return { 'STALE_FENCE' }
end

-- command_check for a worker that shows itself: a command that is not applied keeps a live lease alive all the same.
local function command_begin(u, inc, turn, fence, n, digest, now)
  local reply, receipt = command_check(u, inc, turn, fence, n, digest)
  if reply and u then
    local r = u.r
    if fence == r[FENCE] and r[HOW] == 0 and HELD[r[STATE]] and turn == r[HEAD] and inc == r[INC] then
      lease_alive(u, now)
    end
  end
  return reply, receipt
end

-- Ends the lease of the head by a command: the stream that it was handed out on hears of it, wherever that is.
local function command_end(u, how, server)
  local r = u.r
  tell_holder(u, r[CONN], r[HEAD], r[FENCE], ENDINGS[how], server)
  lease_end(u, how)
end

-- A command that would let a turn complete or wait: one that is to be cancelled ends by it, and the reply says so. Else nil.
--!rare
local function command_cancel(u, now, server)
  if u.r[STATE] ~= CANCELLING then
    return nil
  end
  lease_accept(u, now)
  head_cancel(u, now, server)
  return { 'LEASE_ENDED', ENDINGS[HOW_CANCELLED] }
end

local function command_applied(u, n, digest, word, answer1, answer2)
  local r = u.r
  r[N], r[DIGEST], r[WORD] = n, digest, word
  r[ANSWER1], r[ANSWER2] = answer1 or 0, answer2 or 0
  unit_touch(u)
end
