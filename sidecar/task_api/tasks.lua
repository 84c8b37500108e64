-- Every task of a deployment, one verb at a time. KEYS[1] names them all; what is derived from it has its hash tag.
--
--   <key>:task:<id>     owner, target, state, over, revision, body
--   <key>:of:<owner>    their ids, by when they were created
--   <key>:open          ids that are not over, by until when they are held; <key>:holders says by whom
--   <key>:over          ids that are over, by when they may be forgotten
--   <key>:counts        how many are in each state
local key, verb = KEYS[1], ARGV[1]
local open, over, holders, counts = key .. ':open', key .. ':over', key .. ':holders', key .. ':counts'
local function task(id) return key .. ':task:' .. id end
local function of(owner) return key .. ':of:' .. owner end

local function count(state, by)
  if redis.call('HINCRBY', counts, state, by) <= 0 then redis.call('HDEL', counts, state) end
end

local function forget(id)
  local known = redis.call('HMGET', task(id), 'owner', 'state')
  redis.call('ZREM', over, id)
  if not known[1] then return end
  redis.call('DEL', task(id))
  redis.call('ZREM', of(known[1]), id)
  count(known[2], -1)
end

if verb == 'add' then
  local id, owner, target, state, revision, created, holder, held, per_owner, total, body = unpack(ARGV, 2)
  if redis.call('ZCARD', of(owner)) >= tonumber(per_owner) then
    local gone
    for _, old in ipairs(redis.call('ZRANGE', of(owner), 0, -1)) do
      if redis.call('HGET', task(old), 'over') == '1' then gone = old break end
    end
    if not gone then return 0 end
    forget(gone)
  end
  if redis.call('ZCARD', open) + redis.call('ZCARD', over) >= tonumber(total) then return 0 end
  redis.call('HSET', task(id), 'owner', owner, 'target', target, 'state', state, 'over', '0', 'revision', revision,
    'body', body)
  redis.call('ZADD', of(owner), created, id)
  redis.call('ZADD', open, held, id)
  redis.call('HSET', holders, id, holder)
  count(state, 1)
  return 1
end

if verb == 'get' then return redis.call('HGET', task(ARGV[2]), 'body') end

if verb == 'page' then
  local owner, state, limit, offset, targets = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), {}
  for place = 6, #ARGV do targets[ARGV[place]] = true end
  local found, total = {}, 0
  for _, id in ipairs(redis.call('ZREVRANGE', of(owner), 0, -1)) do
    local known = redis.call('HMGET', task(id), 'target', 'state')
    if targets[known[1]] and (state == '' or known[2] == state) then
      total = total + 1
      if total > offset and #found < limit then found[#found + 1] = redis.call('HGET', task(id), 'body') end
    end
  end
  return {total, found}
end

if verb == 'replace' then
  local id, state, ended, expires, revision, body = unpack(ARGV, 2)
  local known = redis.call('HMGET', task(id), 'state', 'revision')
  if not known[2] or tonumber(known[2]) ~= tonumber(revision) - 1 then return 0 end
  redis.call('HSET', task(id), 'state', state, 'over', ended, 'revision', revision, 'body', body)
  if known[1] ~= state then
    count(known[1], -1)
    count(state, 1)
  end
  if ended == '1' then
    redis.call('ZREM', open, id)
    redis.call('HDEL', holders, id)
    redis.call('ZADD', over, expires, id)
  end
  return 1
end

if verb == 'take' then
  local holder, now, held, limit, of_owner = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
  local beyond = 2 * tonumber(held) - tonumber(now)
  local mine, free, found, has = {}, {}, {}, {}
  for _, id in ipairs(redis.call('ZRANGE', open, 0, -1)) do
    if redis.call('HGET', holders, id) == holder then
      mine[#mine + 1] = id
    else
      local till = tonumber(redis.call('ZSCORE', open, id))
      if till <= tonumber(now) or till > beyond then
        free[#free + 1] = id
      end
    end
  end
  for _, ids in ipairs({mine, free}) do
    for _, id in ipairs(ids) do
      local owner = redis.call('HGET', task(id), 'owner')
      has[owner] = (has[owner] or 0) + 1
      if #found < limit and has[owner] <= of_owner then
        redis.call('ZADD', open, held, id)
        redis.call('HSET', holders, id, holder)
        found[#found + 1] = redis.call('HGET', task(id), 'body')
      end
    end
  end
  return found
end

if verb == 'let_go' then
  for _, id in ipairs(redis.call('ZRANGE', open, 0, -1)) do
    if redis.call('HGET', holders, id) == ARGV[2] then
      redis.call('ZADD', open, 0, id)
      redis.call('HSET', holders, id, '')
    end
  end
  return 1
end

if verb == 'counts' then return redis.call('HGETALL', counts) end

local gone = redis.call('ZRANGEBYSCORE', over, '-inf', ARGV[2], 'LIMIT', 0, tonumber(ARGV[3]))
for _, id in ipairs(gone) do forget(id) end
return #gone
