--!include unit dead
-- The rest of an instance whose deletion goes on in the background.

local BURY_FIELDS = 1000

-- Removes some of its fields, or all that is left; the outcome.
local function bury_more(u, now)
  local key = T .. 'i:' .. u.id
  if redis.call('HLEN', key) <= BURY_FIELDS then
    u.gone = true
    GONE[#GONE + 1] = key
    DUE['delete:' .. u.id] = false
    unit_mark('busy', unit_later(u), false)
    return 'deleted'
  end
  local fields = redis.call('HRANDFIELD', key, BURY_FIELDS)
  for i = 1, #fields do
    local field = fields[i]
    if field ~= 'r' and field ~= 'y' and field ~= 'o' then
      unit_set(u, field, false)
    end
  end
  DUE['delete:' .. u.id] = now
  return 'deleting'
end
