-- The packed record `r` of an instance: a msgpack array whose first element is the format version. Trailing zeros are
-- not stored, and elements beyond the ones known here are kept as they are. store/records.py mirrors the numbers.

local VERSION = 1
local FLAGS = 2 -- bits: 1 paused, 2 deleting, 8 servers await a turn, 16 settings of its own
local INC = 3 -- incarnation
local HEAD = 4 -- turn at the head; TAIL + 1 when the inbox is empty
local TAIL = 5 -- newest admitted turn
local PENDING = 6 -- unfinished turns; HEAD to TAIL holds tombstones besides
local OLDEST = 7 -- oldest turn with a receipt
local KEPT = 8 -- oldest turn with payloads
local KBYTES = 9 -- payload bytes of finished, kept turns
local SEQ = 10 -- newest ledger event
local GC_AT = 11 -- engine ms of the entry `gc` of `due`; 0 if there is none
-- Of the head turn; all zero while the inbox is empty.
local STATE = 12
local BYTES = 13 -- bytes of the message record and the step outputs; known from the first claim on
local STEPS = 14
local ATTEMPT = 15
local FAILURES = 16
local LOST = 17
local DELIVERIES = 18 -- deliveries that nobody received
-- Of its newest lease, also after the end of it.
local FENCE = 19
local CONN = 20
local DEADLINE = 21 -- lease end while RUNNING or CANCELLING, next start while BACKOFF, SLEEPING or DEFERRED, end of the wait while WAITING; engine ms
local LEASED = 22 -- engine ms of the claim
local BITS = 23 -- 1 accepted, 2 orphaned
local HOW = 24 -- how the lease ended, see ENDINGS; 0 while it lives
local N = 25 -- last command number
local DIGEST = 26
local WORD = 27 -- see command.lua
local ANSWER1 = 28
local ANSWER2 = 29 -- of a deferral its reason, as text
-- Of the lease before: the same seven values.
local PFENCE = 30
local PHOW = 31
local PN = 32
local PDIGEST = 33
local PWORD = 34
local PANSWER1 = 35
local PANSWER2 = 36
local RELEASES = 37 -- how often the head turn was given back
local DEFERS = 38 -- how often it was put off
local EXTRA = 39 -- attempts granted by retries, on top of the limit
local LOST_EXTRA = 40 -- the same for losses
local OP = 41 -- its registered step, in `<turn>.o`: 0 none, 1 of an attempt that has ended, 2 runs, 3 runs and must not be repeated unseen
local OP_AT = 42 -- when the step that runs is out of time; engine ms, 0 if none runs
local TOTAL_AT = 43 -- when the turn is out of time; engine ms, 0 for never
local CANCEL_AT = 44 -- when the lease of a cancelling turn ends; engine ms
local FAILING_MS = 45 -- engine ms of the claim of the first attempt that failed
local STEP_FAILURES = 46 -- failures that a step's own policy has decided about
local LAST_OF_HEAD = 46
-- Of the instance; zero for most.
local DELAYED = 47 -- delayed messages
local DELAYED_AT = 48 -- when the first of them is due; engine ms
local EXPIRES_AT = 49 -- when the time to live of a queued message may be over; engine ms
local PARKED_TURNS = 50 -- parked turns whose message is kept
local SIGNALLED = 51 -- turns that have received signals, kept ones and the next one included
local LAST_FIELD = 51

local ENDINGS = { 'completed', 'failed', 'released', 'expired', 'lost', 'returned', 'sleeping', 'deferred', 'cancelled', 'waiting' }

local function record_read(raw)
  local r = cmsgpack.unpack(raw)
  if r[VERSION] ~= 1 or type(r[SEQ]) ~= 'number' then
    error('not a record')
  end
  for i = #r + 1, LAST_FIELD do
    r[i] = 0
  end
  return r
end

-- The record, or nil for one that can't be read.
local function record_unpack(raw)
  local ok, r = pcall(record_read, raw)
  return ok and r or nil
end

local function record_pack(r)
  local n = #r
  while n > SEQ and r[n] == 0 do
    r[n] = nil
    n = n - 1
  end
  return cmsgpack.pack(r)
end

local function record_new(inc, turn)
  local r = { 1, 0, inc, turn, turn - 1, 0, turn, turn, 0, 0 }
  for i = SEQ + 1, LAST_FIELD do
    r[i] = 0
  end
  return r
end

-- A flag test without bit operations: FLAGS and BITS are small.
local function has_bit(value, bit)
  return value % (bit * 2) >= bit
end
