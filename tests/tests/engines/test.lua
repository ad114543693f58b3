local function fib(n) if n < 2 then return n end return fib(n-1)+fib(n-2) end
print(fib(22))
local t = {}
for i=1,300000 do t[i%5000+1] = (t[i%5000+1] or 0) + i end
local s=0 for i=1,#t do s=s+t[i] end print(s)
local a={} local x=12345
for i=1,20000 do x=(x*1103515245+12345)%2147483648 a[i]=x end
table.sort(a) print(a[1],a[#a])
local P={} P.__index=P function P.new(a) return setmetatable({v=a},P) end function P:add(o) return P.new(self.v+o.v) end
local p=P.new(0) local one=P.new(1) for i=1,200000 do p=p:add(one) end print(p.v)
local ffi=require("ffi") ffi.cdef[[int abs(int); typedef int (*cmp)(const void*,const void*); void qsort(void*,size_t,size_t,cmp);]]
local z=0 for i=1,100000 do z=z+ffi.C.abs(-i) end print(z)
local arr=ffi.new("int[?]",500) for i=0,499 do arr[i]=(i*7919)%500 end
local cb=ffi.cast("cmp",function(a,b) return ffi.cast("const int*",a)[0]-ffi.cast("const int*",b)[0] end)
ffi.C.qsort(arr,500,4,cb) print(arr[0],arr[250],arr[499])
print(pcall(function() local q=nil; for i=1,100 do if i==77 then return q.x end end end))
local co=coroutine.wrap(function() for i=1,50000 do coroutine.yield(i) end end) local c=0 for i=1,50000 do c=c+co() end print(c)
os.exit(5)
