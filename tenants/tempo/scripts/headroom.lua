-- What lies ready now.  Writes nothing.
-- Twin: tenants/tempo/memory.py (MemoryTempo.headroom).
--
-- KEYS: hashes of buckets.
-- ARGV: nonce; how many buckets, and of each: its key's place in KEYS, field, limit.
-- Says: nonce, the time, and of each bucket what lies ready and as of when.
local function headroom(KEYS, ARGV)
  local take = reader(ARGV)
  local said = { take() }
  local now = now_ms()
  said[2] = text(now)
  for _ = 1, take(100) do
    local parts, at = ready(KEYS[take(#KEYS)], take(), take(LIMIT_MAX), now)
    said[#said + 1] = text(parts)
    said[#said + 1] = text(at)
  end
  return table.concat(said, ' ')
end
