-- Stores one session's record for all replicas.
--
-- KEYS  one string: the sealed record, which expires after the session's idle time
-- ARGV  the verb; for keep and touch, for how many milliseconds the record is stored; for keep, the record
-- Reply keep: 1; touch: the record, whose expiry is extended, or nil; look: 1 if there is one, otherwise 0; drop: as DEL

local verb, key = ARGV[1], KEYS[1]
if verb == 'keep' then
  redis.call('SET', key, ARGV[3], 'PX', ARGV[2])
  return 1
elseif verb == 'touch' then
  local record = redis.call('GET', key)
  if record then redis.call('PEXPIRE', key, ARGV[2]) end
  return record
elseif verb == 'look' then
  return redis.call('GET', key) and 1 or 0
elseif verb == 'drop' then
  return redis.call('DEL', key)
end
return redis.error_reply('no such verb')
