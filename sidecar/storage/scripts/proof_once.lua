-- Notes the id of a DPoP proof for ARGV[1] milliseconds; 1 for the first, 0 for one that was used.
return redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1]) and 1 or 0
