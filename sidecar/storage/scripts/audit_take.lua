-- Makes a sidecar the writer of an audit stream. KEYS: stream, head. ARGV: the writer's token.
-- Reply: the number of the turn, the head (the anchor's line), and the last line of the stream.
local turn = (tonumber(string.match(redis.call('HGET', KEYS[2], 'turn') or '', '^%d+')) or 0) + 1
redis.call('HSET', KEYS[2], 'turn', string.format('%d', turn) .. ' ' .. ARGV[1])
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
return {turn, redis.call('HGET', KEYS[2], 'head') or '', last[1] and last[1][2][2] or ''}
