-- Returns the identity of the store, and the last charge of this instance that it has.
--
-- KEYS  the epoch, this instance's tide
-- ARGV  the epoch's name if there is none yet, its time to live in ms
-- Reply the epoch's name, the tide or -1
--
-- The epoch lives twice as long as the longest counter; each connected instance extends it.

local epoch = redis.call('GET', KEYS[1])
if epoch then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  epoch = ARGV[1]
  redis.call('SET', KEYS[1], epoch, 'PX', ARGV[2])
end
redis.call('PEXPIRE', KEYS[2], 86400000)
local tide = redis.call('GET', KEYS[2])
if tide and (#tide > 15 or not string.find(tide, '^%d+$')) then error('garbage in a tide') end
return { epoch, tonumber(tide or -1) }
