-- What a request drew, and was not held, comes back, once, to tills that are still of that epoch.  An id that
-- ends here draws nothing any more: a draw that was given up on, and arrives after this, takes nothing.
-- Twin: tenants/till/memory.py (MemoryTills.give_back).
--
-- KEYS: the request's record, then its tills as in the draw.
-- ARGV: nonce, for how many ms the id stays ended.
-- Says: nonce.
local function till_return(KEYS, ARGV)
  local take = reader(ARGV)
  local nonce, mark_ms = take(), take(LIMIT_MAX)
  local said = string.match(redis.call('GET', KEYS[1]) or '', '^drawn (.*)$')
  local back, place = {}, 1
  for epoch, drawn in string.gmatch(said or '', '(%d+) %d+ (%d+)') do
    place = place + 1
    local of = KEYS[place] and till(KEYS[place])
    if of and drawn ~= '0' and of.epoch == tonumber(epoch) then
      of.left = math.min(of.left + tonumber(drawn), of.issued)
      back[#back + 1] = { key = KEYS[place], text = till_text(of) }
    end
  end
  -- From here on only writes, and first the one by which it never happens twice.
  redis.call('SET', KEYS[1], 'ended', 'PX', text(mark_ms))
  for _, each in ipairs(back) do
    redis.call('SET', each.key, each.text, 'KEEPTTL')
  end
  return nonce
end
