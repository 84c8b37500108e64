-- Returns the newest checkpoints of a signer, oldest first. ARGV: how many.
return redis.call('LRANGE', KEYS[1], -tonumber(ARGV[1]), -1)
