-- Rounds of recursion, objects, closures, strings, a hash table, errors and a sort. Their results go to
-- stdout. The processor time of the second half, when all is compiled, goes to stderr.
local ROUNDS = 200

local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end

local Square = {} Square.__index = Square
function Square.new(side) return setmetatable({side = side}, Square) end
function Square:area() return self.side * self.side end
local Strip = {} Strip.__index = Strip
function Strip.new(side) return setmetatable({side = side}, Strip) end
function Strip:area() return self.side * 3 end
local function shapes(n)
  local all, sum = {}, 0
  for i = 1, n do
    all[i % 64] = i % 2 == 0 and Square.new(i % 16) or Strip.new(i % 16)
    local other = all[i * 7 % 64]
    if other then sum = sum + other:area() end
  end
  return sum
end

local function closures(n)
  local adders = {}
  for i = 0, 15 do adders[i] = function(x) return (x + i) % 65536 end end
  local value = 0
  for i = 1, n do value = adders[i % 16](value) end
  return value
end

local function strings(n)
  local words = {}
  for i = 1, n do words[i] = 'w' .. i * 7919 % 1009 end
  local text = table.concat(words, ' '):upper()
  local found = 0
  for word in text:gmatch('%u%d+') do if word:sub(-1) == '7' then found = found + #word end end
  return found + #text:gsub('W1', 'x')
end

local function hash(n)
  local counts, keys = {}, {}
  for i = 1, n do
    local key = 'k' .. i * 31 % 2003
    if not counts[key] then keys[#keys + 1] = key end
    counts[key] = (counts[key] or 0) + i
  end
  local sum = 0
  for _, key in ipairs(keys) do sum = (sum + #key * counts[key]) % 1000003 end
  return sum
end

local function check(i) if i % 5 == 0 then error({value = i}) end return i end
local function errors(n)
  local sum = 0
  for i = 1, n do
    local fine, value = pcall(check, i)
    sum = fine and sum + value or sum - value.value
  end
  return sum
end

local function sorted(n)
  local values, x = {}, 12345
  for i = 1, n do x = (x * 1103515 + 12345) % 2147483647 values[i] = x end
  table.sort(values, function(a, b) return a < b end)
  return values[n / 2] % 1000003
end

local function tree(depth)
  if depth == 0 then return nil end
  return {left = tree(depth - 1), right = tree(depth - 1), depth = depth}
end
local function weigh(node)
  if not node then return 0 end
  return node.depth + weigh(node.left) + weigh(node.right)
end

local half = 0
for i = 1, ROUNDS do
  if i == ROUNDS / 2 + 1 then half = os.clock() end
  print(fib(26 + i % 2), shapes(100000), closures(200000), strings(4000), hash(20000), errors(4000), sorted(6000),
    weigh(tree(13)))
end
io.stderr:write(('steady %.3f\n'):format(os.clock() - half))
