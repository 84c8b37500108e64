-- Appends lines to an audit stream, exactly once. KEYS: stream, head.
-- ARGV: the writer's turn, the head before, the head after, the maximum length ('' for none), '' to check that turn and
-- head are these, then the lines. Reply: 'done', also if they were appended before; 'taken' if a later writer has the
-- turn; 'elsewhere' if the check fails.
local mine, before, after, most, anyway = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local found = redis.call('HMGET', KEYS[2], 'turn', 'head')
local turn, head = found[1] or '', found[2] or ''
local number = function(text) return tonumber(string.match(text, '^%d+')) or 0 end
if turn ~= mine and number(turn) >= number(mine) then return 'taken' end
if turn == mine and head == after then return 'done' end
if anyway == '' and (turn ~= mine or head ~= before) then return 'elsewhere' end
for i = 6, #ARGV do
  if most == '' then
    redis.call('XADD', KEYS[1], '*', 'line', ARGV[i])
  else
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', most, '*', 'line', ARGV[i])
  end
end
redis.call('HSET', KEYS[2], 'turn', mine, 'head', after)
return 'done'
