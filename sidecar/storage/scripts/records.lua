-- Works on all records of one kind. ARGV: a verb and its arguments; each call is one atomic step. KEYS[1] has a hash tag,
-- so that the keys derived from it are on the same server:
--
--   <key>:record:<id>    owner, target, state (its standing), done (1 or 0), revision, body
--   <key>:ends           every id, by the time from which it may be deleted (infinity for unfinished work)
--   <key>:of:<owner>     an owner's ids, by the time of creation
--   <key>:open           ids of unfinished work, by the time until which they are held; <key>:holders has the holders
--   <key>:counts         the number of records of each standing
--   <key>:at:<target>:<standing>   ids, by the time of creation; no standing contains a colon
--   <key>:done:<length of target>:<target>:<owner>   finished ids, by the time of creation; target '' is every target
--   <key>:most:<target>  owners of finished records: the one with most first, then the one with the oldest
--   <key>:histories      the number of finished records of each target
--
-- A record without a target is not in <key>:counts and <key>:at.
local key, verb = KEYS[1], ARGV[1]
local open, ends, holders, counts = key .. ':open', key .. ':ends', key .. ':holders', key .. ':counts'
local histories = key .. ':histories'
local function record(id) return key .. ':record:' .. id end
local function of(owner) return key .. ':of:' .. owner end
local function at(target, state) return key .. ':at:' .. target .. ':' .. state end
local function done(target, owner) return key .. ':done:' .. #target .. ':' .. target .. ':' .. owner end
local function most(target) return key .. ':most:' .. target end

-- An owner's member of <key>:most: the time of its oldest finished record, always 20 characters, and its name.
local function rank(target, owner)
  local oldest = redis.call('ZRANGE', done(target, owner), 0, 0, 'WITHSCORES')[2]
  return oldest and string.format('%020.6f', oldest) .. owner
end
local function owner_in(rank) return string.sub(rank, 21) end

-- Adds a finished record to its owner's (with the time of its creation), or removes it.
local function counted(id, target, owner, created)
  local mine, stood = done(target, owner), rank(target, owner)
  local changed = created and redis.call('ZADD', mine, created, id) or -redis.call('ZREM', mine, id)
  redis.call('HINCRBY', histories, target, changed)
  if stood then redis.call('ZREM', most(target), stood) end
  local stands = rank(target, owner)
  if stands then redis.call('ZADD', most(target), -redis.call('ZCARD', mine), stands) end
end

-- Adds a record to counts and lists (with the time of its creation), or removes it from them.
local function tally(id, target, owner, state, is_done, created)
  if target ~= '' then
    if redis.call('HINCRBY', counts, state, created and 1 or -1) <= 0 then redis.call('HDEL', counts, state) end
    if created then
      redis.call('ZADD', at(target, state), created, id)
    else
      redis.call('ZREM', at(target, state), id)
    end
    if is_done == '1' then counted(id, target, owner, created) end
  end
  if is_done == '1' then counted(id, '', owner, created) end
end

local function hold(id, holder, held)
  redis.call('ZADD', open, held, id)
  redis.call('HSET', holders, id, holder)
end

local function unhold(id)
  redis.call('ZREM', open, id)
  redis.call('HDEL', holders, id)
end

local function forget(id)
  local owner, target, state, is_done = unpack(redis.call('HMGET', record(id), 'owner', 'target', 'state', 'done'))
  redis.call('ZREM', ends, id)
  if not owner then return end
  redis.call('DEL', record(id))
  redis.call('ZREM', of(owner), id)
  unhold(id)
  tally(id, target, owner, state, is_done)
end

-- Deletes the oldest finished record of the owner with most of them. A server that evicts keys may have lost the record
-- or the owner's list.
local function give_way(target)
  local first = redis.call('ZRANGE', most(target), 0, 0)[1]
  if not first then return end
  local oldest = redis.call('ZRANGE', done(target, owner_in(first)), 0, 0)[1]
  if not oldest then return redis.call('ZREM', most(target), first) end
  forget(oldest)
  if redis.call('ZSCORE', done(target, owner_in(first)), oldest) then counted(oldest, target, owner_in(first)) end
end

local function done_of(target) return tonumber(redis.call('HGET', histories, target) or 0) end

if verb == 'add' then
  local id, state, is_done, created, ends_at, revision, body, holder, held, owner, target = unpack(ARGV, 2, 12)
  local per_owner, total, history_most, at_once, evicts_open = unpack(ARGV, 13)
  local known_ends = redis.call('ZSCORE', ends, id)
  if known_ends and tonumber(known_ends) > tonumber(created) then return 'known' end
  if known_ends then forget(id) end
  if history_most ~= '' then
    for _ = 1, math.min(done_of(target) - tonumber(history_most), tonumber(at_once)) do give_way(target) end
  end
  if redis.call('ZCARD', of(owner)) >= tonumber(per_owner) then
    local oldest = redis.call('ZRANGE', done('', owner), 0, 0)[1]
    if not oldest and evicts_open == '1' then oldest = redis.call('ZRANGE', of(owner), 0, 0)[1] end
    if not oldest then return 'full' end
    forget(oldest)
  else
    local beyond = redis.call('ZCARD', ends) - tonumber(total) + 1
    for _ = 1, math.min(beyond, done_of(''), tonumber(at_once)) do give_way('') end
  end
  if redis.call('ZCARD', ends) >= tonumber(total) then return 'full' end
  redis.call('HSET', record(id), 'owner', owner, 'target', target, 'state', state, 'done', is_done, 'revision', revision,
    'body', body)
  redis.call('ZADD', ends, ends_at, id)
  redis.call('ZADD', of(owner), created, id)
  tally(id, target, owner, state, is_done, created)
  if is_done == '0' and held ~= '' then hold(id, holder, held) end
  return 'kept'
end

if verb == 'find' then
  local found = {}
  for place = 2, #ARGV do found[#found + 1] = redis.call('HGET', record(ARGV[place]), 'body') end
  return found
end

-- The bounds limit the number of an owner's records, so all of them are read.
if verb == 'page' then
  local owner, state, limit, offset, targets = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), {}
  for number = 6, #ARGV do targets[ARGV[number]] = true end
  local found, total = {}, 0
  for _, id in ipairs(redis.call('ZREVRANGE', of(owner), 0, -1)) do
    local known = redis.call('HMGET', record(id), 'target', 'state')
    if targets[known[1]] and (state == '' or known[2] == state) then
      total = total + 1
      if total > offset and #found < limit then found[#found + 1] = redis.call('HGET', record(id), 'body') end
    end
  end
  return {total, found}
end

-- All owners may have very many records, so only the page is read, merged from the lists of its targets and standings.
if verb == 'page_of_all' then
  local state, limit, offset, states = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), {ARGV[2]}
  if state == '' then
    states = {}
    for number, word in ipairs(redis.call('HGETALL', counts)) do
      if number % 2 == 1 then states[#states + 1] = word end
    end
  end
  local from, total, skipped, newest, oldest = {}, 0, 0, -math.huge, math.huge
  for number = 5, #ARGV do
    for _, standing in ipairs(states) do
      local one = {key = at(ARGV[number], standing), place = 0}
      local held = redis.call('ZCARD', one.key)
      if held > 0 then from[#from + 1] = one end
      total = total + held
    end
  end
  local function score(one, place)
    local some = redis.call('ZREVRANGE', one.key, place, place, 'WITHSCORES')
    return tonumber(some[2]), some[1]
  end
  local function newer_than(moment)
    local newer = 0
    for _, one in ipairs(from) do
      one.place = redis.call('ZCOUNT', one.key, string.format('(%.17g', moment), '+inf')
      newer = newer + one.place
    end
    return newer
  end
  -- For a page far back, bisect the time until at most 100 records remain to be skipped, or all of them are equally old.
  if offset > 100 and offset < total then
    for _, one in ipairs(from) do
      newest, oldest = math.max(newest, (score(one, 0))), math.min(oldest, (score(one, -1)))
    end
    for _ = 1, 50 do
      local moment = (newest + oldest) / 2
      local newer = newer_than(moment)
      if newer > offset then oldest = moment else newest = moment end
      if newer <= offset and newer > offset - 100 then break end
    end
    skipped = newer_than(newest)
  end
  local found = {}
  for _, one in ipairs(from) do one.created, one.id = score(one, one.place) end
  for number = skipped, offset < total and math.min(offset + limit, total) - 1 or -1 do
    local first
    for _, one in ipairs(from) do
      if one.id and (not first or one.created > first.created or one.created == first.created and one.id > first.id) then
        first = one
      end
    end
    if number >= offset then found[#found + 1] = redis.call('HGET', record(first.id), 'body') end
    first.place = first.place + 1
    first.created, first.id = score(first, first.place)
  end
  return {total, found}
end

if verb == 'replace' or verb == 'reopen' then
  local id, state, is_done, created, ends_at, revision, body, holder, held = unpack(ARGV, 2)
  local known = redis.call('HMGET', record(id), 'target', 'state', 'done', 'owner', 'revision')
  local target, stood, was_done, owner = unpack(known)
  if not target or tonumber(known[5]) ~= tonumber(revision) - 1 then return 0 end
  if (was_done == '1' and is_done == '0') ~= (verb == 'reopen') then return 0 end
  redis.call('HSET', record(id), 'state', state, 'done', is_done, 'revision', revision, 'body', body)
  redis.call('ZADD', ends, ends_at, id)
  redis.call('ZADD', of(owner), created, id)
  tally(id, target, owner, stood, was_done)
  tally(id, target, owner, state, is_done, created)
  if is_done == '1' then unhold(id) elseif verb == 'reopen' then hold(id, holder, held) end
  return 1
end

if verb == 'remove' then
  for place = 2, #ARGV do forget(ARGV[place]) end
  return 1
end

-- Of the free records, those that lapsed first come first, and only those that are taken are read: sorting thousands by
-- age would delay limits, which use this server too.
if verb == 'take' then
  local holder, now, held, limit, of_owner = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
  local beyond = 2 * tonumber(held) - tonumber(now)
  local mine, free, found, has, taken, known, by = {}, {}, {}, {}, 0, {}, {}
  for place = 7, #ARGV, 2 do known[ARGV[place]] = ARGV[place + 1] end
  local told = redis.call('HGETALL', holders)
  for place = 1, #told, 2 do by[told[place]] = told[place + 1] end
  local all = redis.call('ZRANGE', open, 0, -1, 'WITHSCORES')
  for place = 1, #all, 2 do
    local id, till = all[place], tonumber(all[place + 1])
    if by[id] == holder then
      mine[#mine + 1] = id
    elseif till <= tonumber(now) or till > beyond then
      free[#free + 1] = id
    end
  end
  for _, ids in ipairs({mine, free}) do
    for _, id in ipairs(ids) do
      if taken >= limit then return found end
      local owner, revision = unpack(redis.call('HMGET', record(id), 'owner', 'revision'))
      if owner and (has[owner] or 0) < of_owner then
        has[owner] = (has[owner] or 0) + 1
        taken = taken + 1
        hold(id, holder, held)
        if known[id] ~= revision then found[#found + 1] = redis.call('HGET', record(id), 'body') end
      end
    end
  end
  return found
end

if verb == 'let_go' then
  for _, id in ipairs(redis.call('ZRANGE', open, 0, -1)) do
    if redis.call('HGET', holders, id) == ARGV[2] then hold(id, '', 0) end
  end
  return 1
end

if verb == 'counts' then return redis.call('HGETALL', counts) end

if verb == 'has_room' then
  return (redis.call('ZCARD', ends) < tonumber(ARGV[2]) or done_of('') > 0) and 1 or 0
end

local gone = redis.call('ZRANGEBYSCORE', ends, '-inf', ARGV[2], 'LIMIT', 0, tonumber(ARGV[3]))
for _, id in ipairs(gone) do forget(id) end
return #gone
