-- Exchanges changes of the kill switch between replicas.
--
-- KEYS  one hash: principal, tool or server → its newest change; the field "" holds a token that each change replaces
-- ARGV  the token that the replica has seen, a new token, n, then n times: name, change;
--       then pairs of name and change to delete, if the hash still has that change
-- Reply the token; if it is not the one seen, also all fields and values
--
-- A change begins with its rank, 31 digits of which the first is 0: the greater rank is newer. A value without a rank
-- was not written by a sidecar, and every change replaces it.

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
