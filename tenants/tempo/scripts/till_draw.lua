-- Draw one amount from each of a request's tills that has it, unless one of them is known to be dry.
-- Twin: tenants/till/memory.py (MemoryTills.draw).
--
-- KEYS: the request's record, then of each till: itself, and how it is known to be dry.
-- ARGV: nonce, for how many ms the draw is remembered, what is to be drawn, and the least that would do.
-- Says: nonce; 'dry' and which it is, counted from 1, 'ended' where this request is over, or of each till
--   its epoch, what was issued in it, and what was drawn: all or nothing.
-- Again for the same request: the first answer.
local function till_draw(KEYS, ARGV)
  local take = reader(ARGV)
  local nonce, mark_ms, amount, least = take(), take(LIMIT_MAX), take(TILL_MAX), take(TILL_MAX)
  local kept = redis.call('GET', KEYS[1])
  if kept == 'ended' then
    return nonce .. ' ended'
  end
  local first = string.match(kept or '', '^drawn (.*)$')
  if first then
    return nonce .. ' ' .. first
  end
  local drawn, said = {}, {}
  for place = 1, (#KEYS - 1) / 2 do
    local refused = dry(KEYS[2 * place + 1])
    if refused and least >= refused then
      return nonce .. ' dry ' .. text(place)
    end
    local of = till(KEYS[2 * place])
    said[#said + 1] = text(of.epoch)
    said[#said + 1] = text(of.issued)
    local has = amount > 0 and of.left >= amount
    said[#said + 1] = has and text(amount) or '0'
    if has then
      of.left = of.left - amount
      drawn[#drawn + 1] = { key = KEYS[2 * place], text = till_text(of) }
    end
  end
  local answer = table.concat(said, ' ')
  -- From here on only writes, and first the one by which it never happens twice.
  redis.call('SET', KEYS[1], 'drawn ' .. answer, 'PX', text(mark_ms))
  for _, each in ipairs(drawn) do
    redis.call('SET', each.key, each.text, 'KEEPTTL')
  end
  return nonce .. ' ' .. answer
end
