-- Everything or nothing: each bucket has what is asked of it and each seat is free, or nothing is taken.
-- Twins: policies/admission.py (admit), tenants/tempo/memory.py (MemoryTempo.admit).
--
-- KEYS: the request's record, then hashes of buckets and sorted sets of seats.
-- ARGV: nonce, request id, lease in ms; how many draws, and of each: its key's place in KEYS, field, limit,
--   cost; how many seats, and of each: its key's place, limit.
-- Says: nonce; '1' admitted, '0' refused, 'ended' where this request is over; then the time, of each draw
--   what lies ready and as of when (after the draw, where admitted), and of each seat how many are taken.
-- Again for the same request: the first answer.
local function admit(KEYS, ARGV)
  local take = reader(ARGV)
  local nonce, request, lease_ms = take(), take(), take(LIMIT_MAX)
  local now = now_ms()
  local state, until_ms, first = record(KEYS[1])
  if state == 'ended' then
    return nonce .. ' ended'
  end
  if state == 'live' and until_ms > now then
    return nonce .. ' ' .. first
  end
  local fits, draws, seats = true, {}, {}
  for place = 1, take(100) do
    local draw = { key = KEYS[take(#KEYS)], field = take(), limit = take(LIMIT_MAX), cost = take(2 ^ 53) }
    draw.parts, draw.at = ready(draw.key, draw.field, draw.limit, now)
    if draw.cost > 0 and (draw.cost > draw.limit or draw.cost * PARTS > draw.parts) then
      fits = false
    end
    draws[place] = draw
  end
  for place = 1, take(100) do
    local seat = { key = KEYS[take(#KEYS)], limit = take(LIMIT_MAX) }
    -- A lease from further ahead than two is by another clock, and counts again once it is renewed.
    seat.taken = redis.call('ZCOUNT', seat.key, '(' .. text(now), text(now + 2 * lease_ms))
    if seat.taken >= seat.limit then
      fits = false
    end
    seats[place] = seat
  end
  local said = { fits and '1' or '0', text(now) }
  for _, draw in ipairs(draws) do
    if fits then
      draw.parts = draw.parts - draw.cost * PARTS
    end
    said[#said + 1] = text(draw.parts)
    said[#said + 1] = text(draw.at)
  end
  for _, seat in ipairs(seats) do
    said[#said + 1] = text(seat.taken)
  end
  local answer = table.concat(said, ' ')
  if fits then
    -- From here on only writes.
    redis.call('SET', KEYS[1], live(now + lease_ms, answer), 'PX', text(lease_ms))
    for _, draw in ipairs(draws) do
      if draw.cost > 0 then
        keep(draw.key, draw.field, draw.parts, draw.at)
      end
    end
    for _, seat in ipairs(seats) do
      redis.call('ZREMRANGEBYSCORE', seat.key, '-inf', text(now))
      redis.call('ZADD', seat.key, text(now + lease_ms), request)
      redis.call('PEXPIRE', seat.key, text(lease_ms))
    end
  end
  return nonce .. ' ' .. answer
end
