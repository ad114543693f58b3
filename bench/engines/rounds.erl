%% Rounds of recursion, records, closures, binaries, maps, exceptions, a sort and messages. Their results go
%% to stdout. The processor time of the second half goes to stderr.
-module(rounds).
-export([main/0]).
-define(ROUNDS, 120).

fib(N) when N < 2 -> N;
fib(N) -> fib(N - 1) + fib(N - 2).

-record(square, {side}).
-record(strip, {side}).
area(#square{side = Side}) -> Side * Side;
area(#strip{side = Side}) -> Side * 3.
shape(I) when I rem 2 =:= 0 -> #square{side = I band 15};
shape(I) -> #strip{side = I band 15}.
shapes(0, Sum) -> Sum;
shapes(I, Sum) -> shapes(I - 1, Sum + area(shape(I))).

closures(N) ->
    Adders = list_to_tuple([fun(X) -> (X + I) band 16#ffff end || I <- lists:seq(0, 15)]),
    apply_all(N, Adders, 0).
apply_all(0, _, Value) -> Value;
apply_all(I, Adders, Value) -> apply_all(I - 1, Adders, (element(I band 15 + 1, Adders))(Value)).

strings(N) ->
    Words = [["w", integer_to_list(I * 7919 rem 1009), " "] || I <- lists:seq(1, N)],
    Text = iolist_to_binary(Words),
    Found = [byte_size(W) || W <- binary:split(Text, <<" ">>, [global]), W =/= <<>>, binary:last(W) =:= $7],
    lists:sum(Found) + length(string:uppercase(binary_to_list(Text))).

table(N) ->
    Add = fun(I, M) -> maps:update_with({k, I * 31 rem 2003}, fun(V) -> V + I end, I, M) end,
    Counts = lists:foldl(Add, #{}, lists:seq(1, N)),
    maps:fold(fun({k, K}, V, Sum) -> (Sum + K * V) rem 1000003 end, 0, Counts).

check(I) when I rem 5 =:= 0 -> throw({odd, I});
check(I) -> I.
exceptions(0, Sum) -> Sum;
exceptions(I, Sum) ->
    New = try Sum + check(I) catch throw:{odd, Value} -> Sum - Value end,
    exceptions(I - 1, New).

numbers(0, _) -> [];
numbers(N, X) -> Y = (X * 1103515 + 12345) rem 2147483647, [Y | numbers(N - 1, Y)].
sorted(N) -> lists:nth(N div 2, lists:sort(fun(A, B) -> A =< B end, numbers(N, 12345))) rem 1000003.

tree(0) -> nil;
tree(Depth) -> {Depth, tree(Depth - 1), tree(Depth - 1)}.
weigh(nil) -> 0;
weigh({Depth, Left, Right}) -> Depth + weigh(Left) + weigh(Right).

echo() -> receive {From, N} -> From ! N + 1, echo(); stop -> ok end.
messages(Echo, 0, Sum) -> Echo ! stop, Sum;
messages(Echo, N, Sum) -> Echo ! {self(), N}, receive M -> messages(Echo, N - 1, Sum + M) end.

turn(I) ->
    io:format("~w ~w ~w ~w ~w ~w ~w ~w ~w~n",
              [fib(23 + I rem 2), shapes(200000, 0), closures(200000), strings(6000), table(20000),
               exceptions(40000, 0), sorted(8000), weigh(tree(14)), messages(spawn(fun echo/0), 3000, 0)]).

used() -> {Used, _} = statistics(runtime), Used.

main() ->
    [turn(I) || I <- lists:seq(1, ?ROUNDS div 2)],
    Half = used(),
    [turn(I) || I <- lists:seq(?ROUNDS div 2 + 1, ?ROUNDS)],
    io:format(standard_error, "steady ~.3f~n", [(used() - Half) / 1000]),
    halt(0).
