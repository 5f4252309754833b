-- What the scripts of a till share.  Twin: tenants/till/memory.py.
--
-- A till is 'epoch left issued'; all three are below TILL_MAX, and so exact.  What is no till was not written
-- here, and counts as none: epoch 0.  What a till says is believed by nobody who has not asked SQL, so that
-- one that was lost, or restored to an earlier state, costs time and no money.

local TILL_MAX = 9000000000000000

local function till(key)
  local epoch, left, issued = string.match(redis.call('GET', key) or '', '^(%d+) (%d+) (%d+)$')
  if not epoch or tonumber(epoch) > TILL_MAX or tonumber(left) > TILL_MAX or tonumber(issued) > TILL_MAX then
    return { epoch = 0, left = 0, issued = 0 }
  end
  return { epoch = tonumber(epoch), left = tonumber(left), issued = tonumber(issued) }
end

local function till_text(of)
  return text(of.epoch) .. ' ' .. text(of.left) .. ' ' .. text(of.issued)
end

-- The smallest amount that is known not to fit; nothing where all may.
local function dry(key)
  local least = string.match(redis.call('GET', key) or '', '^%d+$')
  return least and tonumber(least)
end
