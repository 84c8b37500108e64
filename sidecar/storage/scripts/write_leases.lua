-- Leases an agent that writes to one run at a time, across all replicas.
--
-- KEYS  one key with a hash tag, so that the keys derived from it are on the same server:
--         <key>:since          when this store was first used (milliseconds): it knows of no earlier lease
--         <key>:holder:<agent> the run that has the lease; it expires with the lease
--         <key>:heads:<agent>  the runs that wait, by the time of their first request
--         <key>:seen:<agent>   the time of the last request of each
-- ARGV  the verb, for how many milliseconds a lease lasts, the agent, the run
-- Reply come, keep: 1 if the run has the lease, otherwise 0; leave, greet: 1

local key, verb, lease, agent, me = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A store that lost its data knows of no lease, but there may be one: none is given until that one would have expired.
local since = tonumber(redis.call('GET', key .. ':since'))
if not since or since > now then
  since = now
  redis.call('SET', key .. ':since', string.format('%.0f', now))
end
if verb == 'greet' then return 1 end

local holder, heads, seen = key .. ':holder:' .. agent, key .. ':heads:' .. agent, key .. ':seen:' .. agent
local holds = redis.call('GET', holder)

local function gone(who)
  redis.call('ZREM', heads, who)
  redis.call('HDEL', seen, who)
end

if verb == 'keep' then
  if holds and holds ~= me then return 0 end
  redis.call('SET', holder, me, 'PX', lease)
  return 1
end

if verb == 'leave' then
  if holds == me then redis.call('DEL', holder) end
  gone(me)
  return 1
end

if holds == me then
  redis.call('PEXPIRE', holder, lease)
  return 1
end
for _, who in ipairs(redis.call('ZRANGE', heads, 0, -1)) do
  local asked = tonumber(redis.call('HGET', seen, who))
  if not asked or asked + lease < now or asked > now then gone(who) end
end
if not redis.call('ZSCORE', heads, me) then
  redis.call('ZADD', heads, string.format('%.0f', time[1] * 1000000 + time[2]), me)
end
redis.call('HSET', seen, me, string.format('%.0f', now))
if redis.call('ZRANK', heads, me) == 0 and not holds and since + lease <= now then
  redis.call('SET', holder, me, 'PX', lease)
  gone(me)
  return 1
end
redis.call('PEXPIRE', heads, lease)
redis.call('PEXPIRE', seen, lease)
return 0
