-- A request is over: its seats are free, and what it did not use comes back, once.  Both of refund (all of
-- it) and release (output that was not generated).  An id that ends here is not admitted again: an
-- admission that was given up on, and arrives after this, takes nothing.
-- Twins: tenants/tempo/memory.py (MemoryTempo.refund, release), policies/rate.py (give).
--
-- KEYS: the request's record, then hashes of buckets and sorted sets of seats.
-- ARGV: nonce, request id, for how many ms the id stays ended; how many buckets, and of each: its key's
--   place in KEYS, field, limit, tokens to give; how many seats, and of each: its key's place.
-- Says: nonce; '1' where it was admitted until now, else '0'.
local function leave(KEYS, ARGV)
  local take = reader(ARGV)
  local nonce, request, ended_ms = take(), take(), take(LIMIT_MAX)
  local now = now_ms()
  local state, until_ms = record(KEYS[1])
  local mine = state == 'live' and until_ms > now
  local gifts, seats = {}, {}
  for _ = 1, take(100) do
    local gift = { key = KEYS[take(#KEYS)], field = take(), limit = take(LIMIT_MAX), tokens = take(2 ^ 53) }
    if mine and gift.tokens > 0 and redis.call('HEXISTS', gift.key, gift.field) == 1 then
      local parts, at = ready(gift.key, gift.field, gift.limit, now)
      gift.at, gift.parts = at, parts + math.min(gift.tokens, gift.limit) * PARTS
      gift.parts = math.min(gift.parts, gift.limit * PARTS)
      gifts[#gifts + 1] = gift
    end
  end
  for place = 1, take(100) do
    seats[place] = KEYS[take(#KEYS)]
  end
  -- From here on only writes, and first the one by which it never happens twice.
  redis.call('SET', KEYS[1], 'ended', 'PX', text(ended_ms))
  for _, gift in ipairs(gifts) do
    keep(gift.key, gift.field, gift.parts, gift.at)
  end
  for _, key in ipairs(seats) do
    redis.call('ZREM', key, request)
  end
  return nonce .. (mine and ' 1' or ' 0')
end
