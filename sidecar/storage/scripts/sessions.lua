-- Is this session still one, at whichever replica it began?
--
-- KEYS  one string: the session's record, sealed; it ends with the session's idle time
-- ARGV  the verb, then: milliseconds that it is kept, and the record itself, where the verb needs them
-- Reply keep: 1; touch: the record, kept for so much longer, or nil; look: 1 if there is one, else 0; drop: as DEL

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
