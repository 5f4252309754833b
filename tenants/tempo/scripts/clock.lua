-- The one clock of a tempo that many share: the server's, in whole milliseconds.
local function now_ms()
  local at = redis.call('TIME')
  return tonumber(at[1]) * 1000 + math.floor(tonumber(at[2]) / 1000)
end
