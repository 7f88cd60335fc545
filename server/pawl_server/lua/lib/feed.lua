--!include unit
-- The feed of the partition: stream `feed`, one entry per script with all its ledger events, written only while somebody
-- watches. An entry is a msgpack array (version, id of the entry before, its own id, and for each instance its id,
-- type:version, incarnation and events). An id is the bytes written so far and the gen: so trimming by id bounds bytes,
-- and an entry that was lost is told from the one in its place. Entries are published, too, on channel `ch:feed`.

local FEED_BYTES = 8388608

-- What the script adds to the feed; nil if nothing, no id if the watch is over and the feed with it.
local function feed_prepare()
  if META.watch == 0 then
    return nil
  end
  local items, size = {}, 0
  for i = 1, #ORDER do
    local u = ORDER[i]
    if u.events then
      local n = #items
      items[n + 1], items[n + 2], items[n + 3], items[n + 4] = u.id, u.tv, u.r[INC], u.events
      size = size + #u.id + #u.tv + 8
      for j = 1, #u.events do
        size = size + #u.events[j]
      end
    end
  end
  if size == 0 then
    return nil
  elseif META.watch <= META.now and not META.virtual then
    return {}
  end
  local offset = (tonumber(string.match(META.feed, '^%d+')) or 0) + size
  local id = string.format('%.0f-%.0f', offset, META.gen)
  local from = string.format('%.0f', math.max(0, offset - FEED_BYTES))
  return { id = id, from = from, entry = cmsgpack.pack({ 1, META.feed, id, items }) }
end
