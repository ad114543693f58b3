-module(test).
-export([main/0]).

fib(N) when N < 2 -> N;
fib(N) -> fib(N - 1) + fib(N - 2).

odd(I) when I rem 3 =:= 0 -> throw(e);
odd(I) -> I.

main() ->
    io:format("~p~n", [fib(20)]),
    Add = fun(I, M) -> maps:update_with(I rem 500, fun(V) -> V + I end, I, M) end,
    io:format("~p~n", [lists:sum(maps:values(lists:foldl(Add, #{}, lists:seq(0, 10000))))]),
    Catch = fun(I, A) -> try A + odd(I) catch throw:e -> A - 1 end end,
    io:format("~p~n", [lists:foldl(Catch, 0, lists:seq(1, 1000))]),
    Self = self(),
    [spawn(fun() -> Self ! {sum, fib(8 + I rem 5)} end) || I <- lists:seq(1, 50)],
    io:format("~p~n", [lists:sum([receive {sum, V} -> V end || _ <- lists:seq(1, 50)])]),
    io:format("~s~n", [re:replace("a1b22", "[0-9]+", "X", [global, {return, list}])]),
    halt(5).
