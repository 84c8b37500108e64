-- Returns the newest checkpoints of a signer. ARGV: how many.
return redis.call('LRANGE', KEYS[1], -tonumber(ARGV[1]), -1)
