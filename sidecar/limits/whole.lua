-- Reads whole numbers. Every script that reads a counter begins with this.
--
-- Redis is not trusted: a value that is not a whole number fails the script.

local function whole(value, default)
  if not value then return default end
  if #value > 16 or not string.find(value, '^%d+$') then error('garbage in a counter') end
  return tonumber(value)
end
