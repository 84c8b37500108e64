-- Adds a checkpoint to its signer's list, and drops the oldest ones. ARGV: the checkpoint, how many remain.
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -tonumber(ARGV[2]), -1)
return 1
