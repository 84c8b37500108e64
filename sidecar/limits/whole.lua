-- Is this value one of our whole numbers? Stands in front of every script that reads a counter.
--
-- Redis is not trusted: what is not a whole number of ours refuses the call, before anything was written.

local function whole(value, default)
  if not value then return default end
  if #value > 16 or not string.find(value, '^%d+$') then error('garbage in a counter') end
  return tonumber(value)
end
