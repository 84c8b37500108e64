-- Which policy does each replica serve?
--
-- KEYS  one hash: replica → when it said so (milliseconds) and what it said
-- ARGV  the replica, what it says, how many milliseconds that counts, and how many replicas there may be
-- Reply what all say that counts: replica, what it said, and so on

local key, me, said, keep, most = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Other writers must not make our answer so long that the limits, which share our connection, wait for it.
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
