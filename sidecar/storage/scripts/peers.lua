-- Exchanges entries between replicas, such as the policy that each serves.
--
-- KEYS  one hash: replica → when it wrote its entry (milliseconds), a blank, the entry
-- ARGV  the replica, its entry, for how many milliseconds an entry is valid, and the maximum number of replicas
-- Reply the valid entries of the other replicas: name, entry, name, entry, …

local key, me, said, keep, most = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Bytes of one entry. Other writers must not make the reply so long that limits, which use the same connection, wait.
local LONGEST = 512
if redis.call('HLEN', key) > 2 * most then redis.call('DEL', key) end

local found, count = {}, 0
local all = redis.call('HGETALL', key)
for i = 1, #all, 2 do
  local at, what = string.match(all[i + 1], '^(%d+) (.*)$')
  at = tonumber(at)
  if not at or at + keep < now or at > now + keep or #all[i] + #what > LONGEST then
    redis.call('HDEL', key, all[i])
  elseif all[i] ~= me then
    count = count + 1
    table.insert(found, all[i])
    table.insert(found, what)
  end
end
if count < most then
  redis.call('HSET', key, me, string.format('%.0f', now) .. ' ' .. said)
  redis.call('PEXPIRE', key, keep)
end
return found
