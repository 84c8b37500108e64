-- Raises counters to the values that this instance saw, in a store that lost them or never had them.
--
-- KEYS  counters
-- ARGV  per counter: kind, when it was last seen µs, how much of it was used then, when all of it is available again µs
-- Reply how many counters were raised
--
-- Counters are raised, never lowered, and nothing is added to them: several instances report the same counter, in any
-- order, and may repeat it. The use is recorded in the bucket of the time at which it was seen, so it leaves the window
-- too late rather than too early. A counter that others have charged in a later bucket is not changed: they saw more.

local MINUTE, DAY, WINDOW = 60000000, 86400000000, 60
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local raise = {}

function raise.hour(key, seen, used)
  local bucket = math.floor(seen / MINUTE)
  if math.floor(now / MINUTE) - bucket > WINDOW then return 0 end
  local got = redis.call('HMGET', key, 'm', 'n', bucket)
  local last, total, count = whole(got[1], bucket), whole(got[2], 0), whole(got[3], 0)
  if last > bucket then return 0 end
  if bucket - last > WINDOW then
    redis.call('DEL', key)
    total, count = 0, 0
  else
    for old = last - WINDOW, bucket - WINDOW - 1 do
      total = total - whole(redis.call('HGET', key, old), 0)
      redis.call('HDEL', key, old)
    end
    if last < bucket then redis.call('HSET', key, 'm', bucket, 'n', total) end
  end
  if total >= used then return 0 end
  redis.call('HSET', key, 'm', bucket, 'n', used, bucket, count + used - total)
  redis.call('PEXPIRE', key, (WINDOW + 2) * MINUTE / 1000)
  return 1
end

function raise.day(key, seen, used)
  local today = math.floor(now / DAY)
  local got = redis.call('HMGET', key, 'd', 'n')
  local day, total = whole(got[1], today), whole(got[2], 0)
  if math.floor(seen / DAY) ~= today or day > today or (day == today and total >= used) then return 0 end
  redis.call('HSET', key, 'd', today, 'n', used)
  redis.call('PEXPIRE', key, math.ceil(((today + 1) * DAY - now) / 1000) + 3600000)
  return 1
end

function raise.month(key, seen, used, ends)
  local got = redis.call('HMGET', key, 'e', 'n')
  local known, total = whole(got[1], 0), whole(got[2], 0)
  if now >= ends or known > ends or (known == ends and total >= used) then return 0 end
  -- Charges from before it was seen can no longer be returned: the beginning of the month is not among the arguments.
  if known ~= ends then redis.call('HSET', key, 'b', seen, 'e', ends) end
  redis.call('HSET', key, 'n', used)
  redis.call('PEXPIRE', key, math.ceil((ends - now) / 1000) + 3600000)
  return 1
end

function raise.rate(key, seen, used, full)
  if full <= now or whole(redis.call('HGET', key, 't'), 0) >= full then return 0 end
  redis.call('HSET', key, 't', full)
  redis.call('PEXPIRE', key, math.ceil((full - now) / 1000) + 1000)
  return 1
end

local raised = 0
for i = 1, #KEYS do
  local at = 4 * i - 3
  -- A counter of another format is not changed: its next reservation is refused.
  local understood, count =
    pcall(raise[ARGV[at]], KEYS[i], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]))
  if understood then raised = raised + count end
end
return raised
