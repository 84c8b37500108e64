-- Who owns which task, one verb at a time. KEYS[1] names all of them; what is derived from it has its hash tag.
--
--   <key>:task:<name>   the fields of one record; a name is namespace, server and id, with a zero byte between them
--   <key>:of:<owner>    names of what has not ended, by when they were created
--   <key>:ended:<owner> names of what has, likewise
--   <key>:most          who has some that ended, by how many, most first
--   <key>:all           names, by when they are over
local key, verb = KEYS[1], ARGV[1]
local all, most_ended = key .. ':all', key .. ':most'
local FIELDS = {'namespace', 'server', 'task_id', 'owner', 'object', 'action', 'method', 'created_at', 'expires_at', 'state'}
local function task(name) return key .. ':task:' .. name end
local function of(owner, state) return key .. (state == '' and ':of:' or ':ended:') .. owner end
local function read(name) return redis.call('HMGET', task(name), unpack(FIELDS)) end

local function rank(owner)
  local held = redis.call('ZCARD', of(owner, 'ended'))
  if held > 0 then redis.call('ZADD', most_ended, -held, owner) else redis.call('ZREM', most_ended, owner) end
end

local function forget(name)
  local known = redis.call('HMGET', task(name), 'owner', 'state')
  redis.call('ZREM', all, name)
  redis.call('DEL', task(name))
  if known[1] then
    redis.call('ZREM', of(known[1], known[2]), name)
    rank(known[1])
  end
end

-- Of whoever has most that ended, the oldest; whether there was any. Who has none, since a version that knows no ranks
-- forgot them, is none of them now.
local function give_way()
  for _ = 1, 100 do
    local owner = redis.call('ZRANGE', most_ended, 0, 0)[1]
    if not owner then return false end
    local oldest = redis.call('ZRANGE', of(owner, 'ended'), 0, 0)[1]
    if oldest then forget(oldest) return true end
    rank(owner)
  end
  return false
end

-- The oldest gives way; of what ended before what has not.
local function make_room(owner, most)
  for _, state in ipairs({'ended', ''}) do
    local held = redis.call('ZCARD', of(owner, '')) + redis.call('ZCARD', of(owner, 'ended'))
    if held >= most then
      for _, oldest in ipairs(redis.call('ZRANGE', of(owner, state), 0, held - most)) do forget(oldest) end
    end
  end
end

if verb == 'claim' then
  local record = {unpack(ARGV, 2, 11)}
  local name = record[1] .. '\0' .. record[2] .. '\0' .. record[3]
  local standing = read(name)
  if standing[9] and tonumber(standing[9]) > tonumber(record[8]) then return standing end
  if standing[9] then forget(name) end
  local per_owner, total = tonumber(ARGV[12]), tonumber(ARGV[13])
  local mine = redis.call('ZCARD', of(record[4], '')) + redis.call('ZCARD', of(record[4], 'ended'))
  if redis.call('ZCARD', all) >= total and mine < per_owner and not give_way() then return false end
  make_room(record[4], per_owner)
  for place, field in ipairs(FIELDS) do redis.call('HSET', task(name), field, record[place]) end
  redis.call('ZADD', all, record[9], name)
  redis.call('ZADD', of(record[4], record[10]), record[8], name)
  rank(record[4])
  return record
end

if verb == 'find' then
  local found = {}
  for place = 5, #ARGV do
    local record = read(ARGV[2] .. '\0' .. ARGV[3] .. '\0' .. ARGV[place])
    if record[9] and tonumber(record[9]) > tonumber(ARGV[4]) then found[#found + 1] = record end
  end
  return found
end

if verb == 'amend' then
  local name = ARGV[2] .. '\0' .. ARGV[3] .. '\0' .. ARGV[4]
  local known = redis.call('HMGET', task(name), 'owner', 'state')
  if known[1] ~= ARGV[5] then return 0 end
  redis.call('HSET', task(name), 'expires_at', ARGV[6])
  redis.call('ZADD', all, ARGV[6], name)
  if known[2] == '' and ARGV[7] ~= '' then
    redis.call('HSET', task(name), 'state', ARGV[7])
    redis.call('ZREM', of(known[1], ''), name)
    redis.call('ZADD', of(known[1], 'ended'), redis.call('HGET', task(name), 'created_at'), name)
    rank(known[1])
  end
  return 1
end

if verb == 'has_room' then
  return (redis.call('ZCARD', all) < tonumber(ARGV[2]) or redis.call('ZCARD', most_ended) > 0) and 1 or 0
end

local gone = redis.call('ZRANGEBYSCORE', all, '-inf', ARGV[2], 'LIMIT', 0, tonumber(ARGV[3]))
for _, name in ipairs(gone) do forget(name) end
return #gone
