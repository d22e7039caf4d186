# What the tests that run a program as a user share. Sourced, after test=NAME: a temporary folder in $work that goes when
# the test ends, counts, and the closing line.
passed=0 failed=0 skipped=0
work=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# run ARGS...: $program on the CPU; output in $work/out and $work/err, exit code in $status. Some tests have a form of their own.
run() {
    "$program" --device cpu "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
}
# make_text N: a text of N lines, $work/text.txt.
make_text() {
    i=0
    while [ $i -lt "$1" ]; do echo "line $i: the quick brown fox jumps over the lazy dog"; i=$((i + 1)); done >"$work/text.txt"
}
# make_items N: N items of multiple choice in bytes, $work/items.bin: contexts of 6 letters, four endings of 3 to 6.
make_items() {
    {
        # shellcheck disable=SC2059
        printf "$(awk -v n="$1" '
            function number(x) { printf "\\%03o\\%03o", x % 256, int(x / 256) }
            function letters(k, seed) { number(k); while (k-- > 0) number(97 + (seed = (seed * 7 + 3) % 26)) }
            BEGIN {
                split("55434 308 1 0 " n " 0 0 0 256 0", header, " ")
                for (i = 1; i <= 10; i++) number(header[i])
                for (i = 0; i < 502; i++) number(0)
                for (i = 0; i < n; i++) {
                    number(65535); number(68); number(i); number(i % 4); number(4); letters(6, i)
                    for (k = 3; k <= 6; k++) letters(k, i * k)
                }
            }')"
    } >"$work/items.bin"
}
# start ARGS...: run, beside this script, as $child.
start() {
    : >"$work/out" # the shell beside it may be late to do so, and nothing of an earlier run is to be awaited
    "$program" --device cpu "$@" >"$work/out" 2>"$work/err" </dev/null &
    child=$!
}
# ended: waits for $child, ten seconds at most; its exit code in $status, the tenths of a second that it took at least in $i.
is_gone() { ! kill -0 $child 2>/dev/null; }
ended() {
    await is_gone
    kill -KILL $child 2>/dev/null
    wait $child
    status=$?
}
# check NAME CONDITION...: counts one condition; the last run's output ($work/out, $work/err) is shown where it fails.
check() {
    name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAIL $test: $name"
        sed 's/^/    /' "$work/err" "$work/out" | head -n 20
    fi
}
# refused NAME PATTERN: the last run ended with exit 2 ($status) and one line on stderr that PATTERN (a grep -E) matches.
refused() {
    what=$1 pattern=$2
    check "$what: exit code $status, expected 2" [ "$status" -eq 2 ]
    check "$what: one line on stderr" [ "$(wc -l <"$work/err")" -eq 1 ]
    check "$what: says /$pattern/" grep -qE -e "$pattern" "$work/err"
}
# command_refuses PATTERN COMMAND ARGS...: runs it, and it is refused so.
command_refuses() {
    case_pattern=$1
    shift
    "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    refused "$*" "$case_pattern"
}
# await COMMAND...: until it succeeds, ten seconds at most.
await() {
    i=0
    until "$@" || [ $i -ge 100 ]; do sleep 0.1; i=$((i + 1)); done
}
# Whether scripts that time the trainer on a card can be seen to refuse: it is built, and there is none.
card_is_missing() { [ -x ./train_gpt2cu ] && ! nvidia-smi -L >/dev/null 2>&1; }
# The closing line that dev/test/run.sh adds up; the test's last command.
finish() {
    echo "$test: $passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}
