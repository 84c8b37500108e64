-- Charges a call to all of its limits, or to none: all are read first.
--
-- KEYS  the decision's record, then one counter per charge (one hash tag, so that they share a slot)
-- ARGV  decision id, record ttl ms (0: only look, charge nothing), lease µs; then per charge: kind, amount, most,
--       interval µs. A limit with a unit counts in millionths of it.
-- Reply decision id, 1 admitted | 0 refused | 2 returned earlier, now µs; then per charge: remaining, wait µs, reset µs
--
-- The arithmetic is that of counters.py, in integers below 2^53, which Redis writes exactly. The clock is the server's.

local MINUTE, DAY, WINDOW = 60000000, 86400000000, 60
local SLOT_WAIT = 1000000

local owner, record_ms, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local ask = {}

-- hash: m the latest bucket, n the count over the window ending there, <bucket> its count
function ask.hour(key, amount, most)
  local bucket = math.floor(now / MINUTE)
  local got = redis.call('HMGET', key, 'm', 'n', bucket)
  local last, total, count, left = whole(got[1], bucket), whole(got[2], 0), whole(got[3], 0), {}
  if last - bucket > WINDOW then -- the clock was ahead: without this, the window would not move until it is reached
    redis.call('DEL', key)
    redis.call('HSET', key, 'm', bucket, 'n', total, bucket, total)
    redis.call('PEXPIRE', key, (WINDOW + 2) * MINUTE / 1000)
    last, count = bucket, total
  elseif last > bucket then
    bucket = last
    count = whole(redis.call('HGET', key, bucket), 0)
  end
  local whole_window_left = bucket - last > WINDOW
  if whole_window_left then
    total, count = 0, 0
  else
    for old = last - WINDOW, bucket - WINDOW - 1 do left[#left + 1] = old end
    if #left > 0 then
      local counts = redis.call('HMGET', key, unpack(left))
      for i = 1, #left do total = total - whole(counts[i], 0) end
    end
  end
  if total < 0 then error('garbage in a counter') end

  local wait, missing = 0, total + amount - most
  if missing > 0 then
    wait = (WINDOW + 1) * MINUTE
    local names = {}
    for old = bucket - WINDOW, bucket do names[#names + 1] = old end
    local counts = redis.call('HMGET', key, unpack(names))
    for i = 1, #names do
      missing = missing - whole(counts[i], 0)
      if missing <= 0 then wait = (bucket + i) * MINUTE - now break end
    end
  end

  local reset = total > 0 and (last + WINDOW + 1) * MINUTE or now
  return math.max(0, most - total), wait, reset, function()
    if whole_window_left then redis.call('DEL', key)
    elseif #left > 0 then redis.call('HDEL', key, unpack(left)) end
    redis.call('HSET', key, 'm', bucket, 'n', total + amount, bucket, count + amount)
    -- Once per bucket is enough: the bucket leaves the window 61 minutes after its beginning.
    if count == 0 then redis.call('PEXPIRE', key, (WINDOW + 2) * MINUTE / 1000) end
    return math.max(0, most - total - amount), (bucket + WINDOW + 1) * MINUTE
  end
end

-- hash: d the day, n its count
function ask.day(key, amount, most)
  local got = redis.call('HMGET', key, 'd', 'n')
  local today = math.floor(now / DAY)
  local day, count = whole(got[1], today), whole(got[2], 0)
  if day < today then day, count = today, 0 end
  if day - today > 1 then -- as for hours
    day = today
    redis.call('HSET', key, 'd', day)
    redis.call('PEXPIRE', key, math.ceil(((today + 1) * DAY - now) / 1000) + 3600000)
  end
  local reset = (day + 1) * DAY
  local wait = count + amount > most and reset - now or 0
  return math.max(0, most - count), wait, reset, function()
    redis.call('HSET', key, 'd', day, 'n', count + amount)
    if count == 0 then redis.call('PEXPIRE', key, math.ceil(((today + 1) * DAY - now) / 1000) + 3600000) end
    return math.max(0, most - count - amount), reset
  end
end

-- Returns the beginning of a month in µs, UTC; `month` counts from January of the year 0. Years are counted from March:
-- they then end with the leap day, and the lengths of their months follow one formula.
local function begins(month)
  local year, since_march = math.floor((month - 2) / 12), (month - 2) % 12
  local days = 365 * year + math.floor(year / 4) - math.floor(year / 100) + math.floor(year / 400)
  return (days + math.floor((153 * since_march + 2) / 5) - 719468) * DAY
end

-- hash: b, e the month's beginning and end in µs, n its count
function ask.month(key, amount, most)
  local got = redis.call('HMGET', key, 'b', 'e', 'n')
  local from, reset, count = whole(got[1], 0), whole(got[2], 0), whole(got[3], 0)
  local ahead = reset - now > 62 * DAY -- as for hours
  if now >= reset or ahead then
    local month = 1970 * 12 + math.floor(now / DAY / 30.436875)
    while begins(month) > now do month = month - 1 end
    while begins(month + 1) <= now do month = month + 1 end
    from, reset = begins(month), begins(month + 1)
    if ahead then
      redis.call('HSET', key, 'b', from, 'e', reset)
      redis.call('PEXPIRE', key, math.ceil((reset - now) / 1000) + 3600000)
    else
      count = 0
    end
  end
  local wait = count + amount > most and reset - now or 0
  return math.max(0, most - count), wait, reset, function()
    redis.call('HSET', key, 'b', from, 'e', reset, 'n', count + amount)
    if count == 0 then redis.call('PEXPIRE', key, math.ceil((reset - now) / 1000) + 3600000) end
    return math.max(0, most - count - amount), reset
  end
end

-- hash: t when the whole burst is available again; z the last low tide, l its backlog, y the low tide before it
-- (counters.py)
function ask.rate(key, amount, most, interval)
  local got = redis.call('HMGET', key, 't', 'z')
  local full, low, burst = whole(got[1], 0), whole(got[2], 0), most * interval
  if full - now > burst then -- the clock stepped back: at most one burst is blocked
    full = now + burst
    redis.call('HSET', key, 't', full)
  end
  local backlog = math.max(full - now, 0)
  local wait = math.max(0, backlog + amount * interval - burst)
  return math.floor((burst - backlog) / interval), wait, now + backlog, function()
    local tide = backlog < interval and { 'z', now, 'l', backlog, 'y', low } or {}
    backlog = backlog + amount * interval
    redis.call('HSET', key, 't', now + backlog, unpack(tide))
    redis.call('PEXPIRE', key, math.ceil(backlog / 1000) + 1000)
    return math.floor((burst - backlog) / interval), now + backlog
  end
end

-- sorted set: owner → end of its lease
function ask.concurrency(key, amount, most)
  local held = redis.call('ZCOUNT', key, string.format('(%.0f', now), '+inf')
  local wait = 0
  if held >= most then
    wait = SLOT_WAIT
    -- No lease is so long: the clock was ahead, and the slot of an owner that died would stay occupied until then.
    local ahead = redis.call('ZRANGEBYSCORE', key, string.format('(%.0f', now + 2 * lease), '+inf')
    for _, owner in ipairs(ahead) do redis.call('ZADD', key, now + lease, owner) end
  end
  return math.max(0, most - held), wait, 0, function()
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    redis.call('ZADD', key, now + lease, owner)
    redis.call('PEXPIRE', key, math.ceil(lease / 1000) + 1000)
    return math.max(0, most - held - 1), 0
  end
end

local done = whole(redis.call('GET', KEYS[1]), -1)
local standings, charges, admitted = {}, {}, 1
for i = 2, #KEYS do
  local at = 4 * (i - 1)
  local remaining, wait, reset, charge =
    ask[ARGV[at]](KEYS[i], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]))
  if wait > 0 then admitted = 0 end
  local to = 3 * (i - 2)
  standings[to + 1], standings[to + 2], standings[to + 3] = remaining, wait, reset
  charges[i] = charge
end

if done == 0 then
  admitted = 2
elseif done > 0 then
  admitted = 1
elseif admitted == 1 and record_ms ~= '0' then
  redis.call('SET', KEYS[1], now, 'PX', record_ms)
  for i = 2, #KEYS do
    local to = 3 * (i - 2)
    standings[to + 1], standings[to + 3] = charges[i]()
  end
end
return {owner, admitted, now, unpack(standings)}
