-- Order of bytes, as in a sorted set; `<` follows the locale of the Redis process.

local function up_to(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a <= #b
end
