-- A proof of possession counts once, for as long as it is remembered.
-- Twin: tenants/tempo/proofs.py (MemoryProofs.first).
--
-- KEYS: the tenant's proofs, a sorted set by when each is forgotten; by which call this one came.
-- ARGV: nonce, call, digest, for how many ms it is remembered, how many a tenant may have.
-- Says: nonce; 'first', 'seen' or 'full'.  Again for the same call: the first answer.
local function prove(KEYS, ARGV)
  local take = reader(ARGV)
  local nonce, call, digest, kept_ms, most = take(), take(), take(), take(LIMIT_MAX), take(LIMIT_MAX)
  local now = now_ms()
  local until_ms = tonumber(redis.call('ZSCORE', KEYS[1], digest) or '0')
  if until_ms > now then
    return nonce .. (redis.call('GET', KEYS[2]) == call and ' first' or ' seen')
  end
  if redis.call('ZCOUNT', KEYS[1], '(' .. text(now), '+inf') >= most then
    return nonce .. ' full'
  end
  -- From here on only writes.
  redis.call('SET', KEYS[2], call, 'PX', text(kept_ms))
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now))
  redis.call('ZADD', KEYS[1], text(now + kept_ms), digest)
  redis.call('PEXPIRE', KEYS[1], text(kept_ms))
  return nonce .. ' first'
end
