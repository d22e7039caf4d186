# What the tests that run a program as a user share. Sourced, after test=NAME: a temporary folder in $work that goes when
# the test ends, counts, and the closing line.
passed=0 failed=0 skipped=0
export LC_ALL=C # sort, awk and printf of a locale with a decimal comma read 1.5 as 1
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
child= # what runs beside this script, until it has ended
work=$(mktemp -d) || exit 1
trap '[ -z "$child" ] || kill -KILL "$child" 2>/dev/null; chmod -R u+w "$work"; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

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
# is_gone: $child has ended; a zombie has, which not every shell collects before `wait`.
is_gone() { ! kill -0 "$child" 2>/dev/null || grep -qs '^State:.Z' "/proc/$child/status"; }
# ended: waits for $child; its exit code in $status. One that never ends is killed.
ended() {
    await is_gone
    is_gone || kill -KILL "$child" 2>/dev/null # it may end meanwhile
    wait "$child"
    status=$?
    child=
}
# is_stopped PID...: all their threads; one that is in a call of the system is found by the signal later.
is_stopped() {
    for process in "$@"; do
        ! grep -hs '^State:' "/proc/$process/task/"*/status | grep -qv '^State:.[TZ]' || return 1
    done
}
# has_steps N LOG: a log.jsonl has so many steps or more.
has_steps() { [ "$(cat "$2" 2>/dev/null | grep -c '"norm"')" -ge "$1" ]; }
# computes: from now on $child has computed for 0.2 s, however long that takes: it is well behind what it said last.
computes() {
    computed=$(cpu_time)
    await has_computed $((computed + 20))
}
has_computed() { [ "$(cpu_time)" -ge "$1" ]; }
cpu_time() { sed 's/.*) //' "/proc/$child/stat" 2>/dev/null | awk '{ n = $12 + $13 } END { print n + 0 }'; } # in hundredths of a second; 0 where it is gone
# ranks_of PID: the processes that --gpus started there, by rank.
ranks_of() {
    for process in $(grep -ls "^PPid:[^0-9]*$1\$" /proc/[0-9]*/status | cut -d / -f 3); do
        echo "$(tr '\0' '\n' 2>/dev/null <"/proc/$process/environ" | sed -n 's/^RANK=//p') $process"
    done | sort -n | sed 's/.* //'
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
# await COMMAND...: until it succeeds. A minute at most, more on a busy machine or with more looks than 700 in $most_looks; once $child
# is gone nothing comes any more.
await() {
    looks=0
    until "$@"; do
        if [ $looks -ge "${most_looks:-700}" ] || { [ -n "$child" ] && is_gone; }; then
            "$@" # once more: the child may have done it last
            return
        fi
        if [ $looks -lt 100 ]; then sleep 0.01; else sleep 0.1; fi
        looks=$((looks + 1))
    done
}
# Whether scripts that time the trainer on a card can be seen to refuse: it is built, and there is none.
card_is_missing() { [ -x ./train_gpt2cu ] && ! nvidia-smi -L >/dev/null 2>&1; }
# The closing line that dev/test/run.sh adds up; the test's last command.
finish() {
    echo "$test: $passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}
