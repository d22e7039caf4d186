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
