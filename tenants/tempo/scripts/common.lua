-- What the scripts share.  Twins: policies/rate.py (refill, take, give), tenants/tempo/memory.py.
--
-- Numbers here are doubles, exact up to 2^53.  A limit is at most LIMIT_MAX, so a full bucket is at
-- most 2^52 parts, what a minute refills no more than that again, and their sum no more than 2^53.
-- Numbers cross the border as strings of digits, both ways.  A script looks at everything before it
-- writes anything: what fails half way is not undone.

local PARTS = 60000          -- of one token: tokens a minute, times milliseconds, are parts
local MINUTE_MS = 60000      -- in which any bucket refills, whatever its limit
local LIMIT_MAX = 75000000000

local function text(number)
  return string.format('%.0f', number)
end

-- A whole number that came in, no larger than `most`.
local function whole(given, most)
  local number = string.match(given or '', '^%d+$') and tonumber(given)
  if not number or number > most then
    error('lockgate: expected a whole number up to ' .. text(most))
  end
  return number
end

-- Reads the arguments one after the other.
local function reader(argv)
  local at = 0
  return function(most)
    at = at + 1
    if most then
      return whole(argv[at], most)
    end
    return argv[at]
  end
end

-- What lies ready in a bucket, and as of when; one that is absent is full.  What is no bucket was not
-- written here, and counts as absent.  One from further ahead than a whole refill is by another clock
-- (this one stepped back, or it is another server's): it counts from now.
local function ready(key, field, limit, now)
  if limit <= 0 then
    return 0, now
  end
  local most = limit * PARTS
  local parts, at = string.match(redis.call('HGET', key, field) or '', '^(%d+) (%d+)$')
  if not parts then
    return most, now
  end
  parts, at = math.min(tonumber(parts), most), tonumber(at)
  if at > now + MINUTE_MS then
    at = now
  end
  if now > at then
    parts = math.min(most, parts + math.min(now - at, MINUTE_MS) * limit)
    at = now
  end
  return parts, at
end

-- A bucket that is left alone is full again within a minute, and full is absent.
local function keep(key, field, parts, at)
  redis.call('HSET', key, field, text(parts) .. ' ' .. text(at))
  redis.call('PEXPIRE', key, text(MINUTE_MS))
end

-- A request's record: 'live', until when, and what was answered; or 'ended'.
local function record(key)
  local kept = redis.call('GET', key)
  if not kept then
    return 'absent'
  end
  local until_ms, answer = string.match(kept, '^live (%d+) (.*)$')
  if until_ms then
    return 'live', tonumber(until_ms), answer
  end
  return 'ended'
end

local function live(until_ms, answer)
  return 'live ' .. text(until_ms) .. ' ' .. answer
end
