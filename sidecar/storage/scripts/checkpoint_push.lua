-- Adds a checkpoint to its signer's list, of which the newest are kept. ARGV: the checkpoint, how many.
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -tonumber(ARGV[2]), -1)
return 1
