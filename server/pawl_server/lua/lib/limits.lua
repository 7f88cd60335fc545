-- Refusals that name the limit. Limits of payloads count their data, not the encoding in front of it.

local function data_bytes(blob)
  return #blob - (string.find(blob, '\0', 1, true) or 0)
end

local function over(name, value, max)
  return { 'LIMIT_EXCEEDED', name, value, max }
end
