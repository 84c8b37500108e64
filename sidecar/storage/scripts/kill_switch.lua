-- What do all replicas know of disabled principals, together?
--
-- KEYS  one hash: principal → flip; the field "" holds a token that changes with every change of the rest
-- ARGV  the token that the replica has seen, a token for a change, n, then n times: principal, flip;
--       then: principal, flip, for those that are to be forgotten
-- Reply the token; if it is not the one seen, the whole hash after it
--
-- A flip begins with its rank: 31 digits of which the first is 0, the greater the newer. What has none is not ours, and
-- gives way.

local MOST = 20000
local RANK = '^0' .. string.rep('%d', 30)

local function rank(flip)
  return flip and string.match(flip, RANK) or ''
end

local key, seen, fresh, count = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local changed = false
for i = 4, 3 + 2 * count, 2 do
  local known = redis.call('HGET', key, ARGV[i])
  if rank(known) < rank(ARGV[i + 1]) then
    redis.call('HSET', key, ARGV[i], ARGV[i + 1])
    changed = true
  end
end
for i = 4 + 2 * count, #ARGV, 2 do
  if redis.call('HGET', key, ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', key, ARGV[i])
    changed = true
  end
end
if changed then redis.call('HSET', key, '', fresh) end
local token = redis.call('HGET', key, '') or ''
if token ~= '' and token == seen then return {token} end
if redis.call('HLEN', key) > MOST then return redis.error_reply('too many disabled principals') end
local all = redis.call('HGETALL', key)
table.insert(all, 1, token)
return all
