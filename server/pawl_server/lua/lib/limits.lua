-- Refusals that name the limit.

local function over(name, value, max)
  return { 'LIMIT_EXCEEDED', name, value, max }
end
