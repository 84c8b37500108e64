-- Settles a call: returns all its charges, or its slots and the unspent part, or extends its slots.
--
-- KEYS  the decision's record, then its counters, as for admit.lua
-- ARGV  "give_back" | "release" | "extend", decision id, record ttl ms, lease µs; then per charge: kind, amount, most, interval µs
-- Reply decision id
--
-- Each may arrive twice, late, or before the charge that it undoes: the record shows what is still to be done.

local MINUTE, DAY = 60000000, 86400000000
local verb, owner, record_ms, lease = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local give_back = {}

function give_back.hour(key, charged, amount)
  local bucket = math.floor(charged / MINUTE)
  if whole(redis.call('HGET', key, bucket), 0) < amount then return end
  redis.call('HINCRBY', key, bucket, -amount)
  redis.call('HINCRBY', key, 'n', -amount)
end

function give_back.day(key, charged, amount)
  local got = redis.call('HMGET', key, 'd', 'n')
  if whole(got[1], -1) ~= math.floor(charged / DAY) or whole(got[2], 0) < amount then return end
  redis.call('HINCRBY', key, 'n', -amount)
end

function give_back.month(key, charged, amount)
  local got = redis.call('HMGET', key, 'b', 'e', 'n')
  if charged < whole(got[1], 0) or charged >= whole(got[2], 0) or whole(got[3], 0) < amount then return end
  redis.call('HINCRBY', key, 'n', -amount)
end

function give_back.rate(key, charged, amount, interval)
  local got = redis.call('HMGET', key, 't', 'z', 'l', 'y')
  if not got[1] then return end
  local worth = amount * interval
  if charged < whole(got[2], 0) then
    worth = charged >= whole(got[4], 0) and math.min(worth, whole(got[3], 0)) or 0
  end
  redis.call('HSET', key, 't', math.max(0, whole(got[1], 0) - worth))
end

function give_back.concurrency(key)
  redis.call('ZREM', key, owner)
end

local function each(act)
  for i = 2, #KEYS do
    local at = 1 + 4 * (i - 1)
    act(ARGV[at], KEYS[i], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 3]))
  end
end

if verb == 'give_back' then
  local charged = whole(redis.call('GET', KEYS[1]), 0)
  if charged > 0 then
    each(function(kind, key, amount, interval) give_back[kind](key, charged, amount, interval) end)
  end
  -- Also without a charge: one that arrives later is then refused as returned.
  redis.call('SET', KEYS[1], '0', 'PX', record_ms)
elseif verb == 'release' then
  local charged = whole(redis.call('GET', KEYS[1]), 0)
  each(function(kind, key, amount, interval)
    if charged > 0 or kind == 'concurrency' then give_back[kind](key, charged, amount, interval) end
  end)
  redis.call('DEL', KEYS[1])
elseif verb == 'extend' then
  redis.call('PEXPIRE', KEYS[1], record_ms)
  each(function(kind, key)
    if kind ~= 'concurrency' then return end
    -- An expired lease remains expired, because another call may have its slot.
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    redis.call('ZADD', key, 'XX', now + lease, owner)
    redis.call('PEXPIRE', key, math.ceil(lease / 1000) + 1000)
  end)
else
  error('unknown verb')
end
return owner
