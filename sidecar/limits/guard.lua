-- Charges only in the store that this instance knows, and records the number of the charge. Encloses admit.lua.
--
-- KEYS  those of admit.lua, then the epoch, then this instance's tide
-- ARGV  those of admit.lua, then the epoch that it knows, then the number of this charge
--
-- An emptied or replaced store has another epoch or none: nothing is charged in it before its counters are restored. The
-- tide is the number of the last charge of this instance. It is written in the same step as the charge, so in a promoted
-- replica it shows which charges were lost.

local function charge()
-- admit.lua is inserted here
end

local tide_at, epoch_at = table.remove(KEYS), table.remove(KEYS)
local tide, epoch = table.remove(ARGV), table.remove(ARGV)
if redis.call('GET', epoch_at) ~= epoch then return redis.error_reply('EPOCH this is another store, or it was emptied') end
local looks, reply = ARGV[2] == '0', charge()
if reply[2] == 1 and not looks then redis.call('SET', tide_at, tide, 'PX', 86400000) end
return reply
