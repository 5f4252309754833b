-- Tell tills what SQL has set aside for them, and which requests it refused.  Safe to repeat, to lose, and to
-- come in any order: what was issued in an epoch only grows, and an epoch is only followed by later ones.
-- Twin: tenants/till/memory.py (MemoryTills.fill).
--
-- KEYS: of each till: itself, and how it is known to be dry.
-- ARGV: nonce, how many ms a till lives after this, for how many ms it is dry; of each: the epoch, what a till
--   that knows nothing of it is to take for known of what was issued, what was issued, and the least amount
--   that was refused, 0 for none.
-- Says: nonce.
local function till_fill(KEYS, ARGV)
  local take = reader(ARGV)
  local nonce, till_ms, dry_ms = take(), take(LIMIT_MAX), take(LIMIT_MAX)
  local told = {}
  for place = 1, #KEYS / 2 do
    local each = { key = KEYS[2 * place - 1], dry_key = KEYS[2 * place] }
    local epoch, since, issued, refused = take(TILL_MAX), take(TILL_MAX), take(TILL_MAX), take(TILL_MAX)
    local of, known = till(each.key), dry(each.dry_key)
    each.news = epoch > of.epoch or (epoch == of.epoch and issued > of.issued)
    each.old = epoch < of.epoch or (epoch == of.epoch and issued < of.issued)
    if epoch > of.epoch then
      of = { epoch = epoch, left = 0, issued = math.min(since, issued) }
    end
    if each.news then
      each.filled = issued > of.issued
      of.left, of.issued = of.left + issued - of.issued, issued
      each.text = till_text(of)
    end
    local covered = known and known <= refused and not each.filled
    if refused > 0 and not each.old and not covered then
      each.dry = text(refused)
    end
    told[place] = each
  end
  -- From here on only writes.
  for _, each in ipairs(told) do
    if each.news then
      redis.call('SET', each.key, each.text, 'PX', text(till_ms))
    end
    if each.filled then
      redis.call('PEXPIRE', each.dry_key, '0') -- a right that our user has anyway, and DEL is another
    end
    if each.dry then
      redis.call('SET', each.dry_key, each.dry, 'PX', text(dry_ms))
    end
  end
  return nonce
end
