-- Stores the id of a DPoP proof for ARGV[1] milliseconds. Reply: 1 if it is new, 0 if it was used before.
return redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1]) and 1 or 0
