-- Which replica's run of an agent that writes may be at work? One at a time.
--
-- KEYS  one name; what is derived from it has its hash tag:
--         <key>:since          when this store was first asked (milliseconds): it forgot everything before
--         <key>:holder:<agent> who has the turn; it ends with the lease
--         <key>:heads:<agent>  who waits, by when they came
--         <key>:seen:<agent>   when each of them asked last
-- ARGV  the verb, and: how many milliseconds a lease lasts, the agent, who asks
-- Reply come, keep: 1 or 0, whether the turn is theirs; leave, greet: 1

local key, verb, lease, agent, me = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A store that came back empty knows of no turn, and there may be one: none is given until that one would have ended.
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
