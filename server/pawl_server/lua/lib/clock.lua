-- Engine time: Redis TIME with detected steps removed, ms since the epoch. Only virtual-time namespaces take it from the caller.

local function clock_now(virtual, shift, now_ms)
  if virtual then
    return now_ms
  end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000) - shift
end
