-- Who wants to hear of which task, one verb at a time. KEYS[1] names them all; what is derived from it has its hash tag.
--
--   <key>:push:<handle>  owner, server, task, config, and the body, which is sealed
--   <key>:of:<owner>     handles, by when they were kept
--   <key>:all            handles, by when they are over
local key, verb = KEYS[1], ARGV[1]
local all = key .. ':all'
local function push(handle) return key .. ':push:' .. handle end
local function of(owner) return key .. ':of:' .. owner end
local function read(handle) return redis.call('HMGET', push(handle), 'task', 'config', 'body', 'owner', 'server') end

local function forget(handle)
  local owner = redis.call('HGET', push(handle), 'owner')
  redis.call('ZREM', all, handle)
  redis.call('DEL', push(handle))
  if owner then redis.call('ZREM', of(owner), handle) end
end

local function lives(handle, now)
  local expires = redis.call('ZSCORE', all, handle)
  return expires and tonumber(expires) > tonumber(now)
end

if verb == 'keep' then
  local handle, owner, server, task, config, created, expires, body, per_owner, total = unpack(ARGV, 2)
  if redis.call('ZCARD', all) >= tonumber(total) then return 0 end
  if redis.call('ZCARD', of(owner)) >= tonumber(per_owner) then return 0 end
  redis.call('HSET', push(handle), 'owner', owner, 'server', server, 'task', task, 'config', config, 'body', body)
  redis.call('ZADD', all, expires, handle)
  redis.call('ZADD', of(owner), created, handle)
  return 1
end

if verb == 'push' then
  if not lives(ARGV[2], ARGV[3]) then return false end
  local found = read(ARGV[2])
  return {ARGV[2], found[1], found[2], found[3]}
end

if verb == 'of' then
  local owner, server, task, now = unpack(ARGV, 2)
  local told = {}
  for _, handle in ipairs(redis.call('ZRANGE', of(owner), 0, -1)) do
    local found = read(handle)
    if found[5] == server and found[1] == task and lives(handle, now) then
      told[#told + 1] = {handle, found[1], found[2], found[3]}
    end
  end
  return told
end

if verb == 'bind' then
  local handle, task = ARGV[2], ARGV[3]
  local known = redis.call('HGET', push(handle), 'task')
  if not known then return '' end
  if known ~= '' then return known end
  redis.call('HSET', push(handle), 'task', task)
  return task
end

if verb == 'name' then
  local handle, task, config = ARGV[2], ARGV[3], ARGV[4]
  local named = read(handle)
  if not named[4] then return {} end
  local older = {}
  for _, other in ipairs(redis.call('ZRANGE', of(named[4]), 0, -1)) do
    local found = read(other)
    if other ~= handle and found[5] == named[5] and found[1] == task and found[2] == config then
      older[#older + 1] = other
    end
  end
  for _, other in ipairs(older) do forget(other) end
  redis.call('HSET', push(handle), 'task', task, 'config', config)
  return older
end

if verb == 'forget' then
  for place = 2, #ARGV do forget(ARGV[place]) end
  return #ARGV - 1
end

local gone = redis.call('ZRANGEBYSCORE', all, '-inf', ARGV[2], 'LIMIT', 0, tonumber(ARGV[3]))
for _, handle in ipairs(gone) do forget(handle) end
return #gone
