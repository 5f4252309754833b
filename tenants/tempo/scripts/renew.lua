-- Leases of requests that still run, of one tenant.  What this server has lost of them (it was wiped, or
-- another took over) is put back: their seats are taken, whatever the limit, until they end.
-- Twin: tenants/tempo/memory.py (MemoryTempo.renew), which loses nothing.
--
-- KEYS: records and sorted sets of seats.
-- ARGV: nonce, lease in ms; how many requests, and of each: id, its record's place in KEYS, how many seats,
--   and of each: its key's place.
-- Says: nonce; of each request '1', or '0' where its lease had lapsed or it is over.
local function renew(KEYS, ARGV)
  local take = reader(ARGV)
  local nonce, lease_ms = take(), take(LIMIT_MAX)
  local now = now_ms()
  local said, kept, seats = { nonce }, {}, {}
  for _ = 1, take(1000) do
    local request, key = take(), KEYS[take(#KEYS)]
    local state, until_ms, answer = record(key)
    local mine = state == 'absent' or (state == 'live' and until_ms > now)
    for _ = 1, take(100) do
      local place = take(#KEYS)
      if mine then
        seats[#seats + 1] = { key = KEYS[place], request = request }
      end
    end
    if mine then
      kept[#kept + 1] = { key = key, answer = answer or 'ended' }
    end
    said[#said + 1] = mine and '1' or '0'
  end
  -- From here on only writes.
  for _, each in ipairs(kept) do
    redis.call('SET', each.key, live(now + lease_ms, each.answer), 'PX', text(lease_ms))
  end
  for _, seat in ipairs(seats) do
    redis.call('ZADD', seat.key, text(now + lease_ms), seat.request)
    redis.call('PEXPIRE', seat.key, text(lease_ms))
  end
  return table.concat(said, ' ')
end
