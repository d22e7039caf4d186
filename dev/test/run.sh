#!/bin/sh
# Runs the test programs named as arguments and adds up their closing lines. Ends with 'N passed, N failed, N skipped'; a
# program that dies without a closing line counts as one failure. Many tests wait more than they compute, so some run beside
# each other: TEST_JOBS of them, one more than there are cores unasked.
set -u
# The cores that this process may use, and a container's share of them.
cores=$({ nproc || getconf _NPROCESSORS_ONLN || echo 1; awk '$1 + 0 > 0 { print int(($1 + $2 - 1) / $2) }' /sys/fs/cgroup/cpu.max; } 2>/dev/null | sort -n | head -n 1)
jobs=${TEST_JOBS:-$((cores < 7 ? cores + 1 : 8))}
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # waiting threads leave the cores to whatever else runs here
OUTPUTS=$(mktemp -d) || exit 1
export OUTPUTS
trap 'rm -rf "$OUTPUTS"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# uses_card PROGRAM: it computes on a card; one that measures fills it or times it.
uses_card() { case ${1##*/} in test_ops*) return 0 ;; esac; return 1; }
measures_card() {
    case ${1##*/} in
    test_ops_large | test_gpt2cu | test_comm_ranks | test_context | test_dropout | test_profile | test_step.sh | test_lab_card.sh) return 0 ;;
    esac
    return 1
}
# is_long PROGRAM: it takes ten seconds or more; such start first, so that none ends alone.
is_long() {
    case ${1##*/} in
    test_gpt2* | test_checkpoint_faults | test_watchdog | test_faults.sh | test_script_parts.sh | test_data.sh | test_disk.sh | test_soak.sh | test_step.sh) return 0 ;;
    esac
    return 1
}
# run_each N PROGRAM...: N at once, each with its output in a file; prints 'STATUS PROGRAM' as each ends.
run_each() {
    n=$1
    shift
    [ $# -eq 0 ] || printf '%s\n' "$@" | xargs -P "$n" -n 1 sh -c '"$0" >"$OUTPUTS/${0##*/}" 2>&1; echo "$? $0"'
}
# Those that use a card share it by threes, for their time is that of the CPU's results; those that measure it come last, alone.
run_all() {
    beside='' sharing='' alone='' cards=$(ls /dev/nvidia[0-9]* 2>/dev/null)
    for program in "$@"; do
        if [ -n "$cards" ] && measures_card "$program"; then
            alone="$alone $program"
        elif [ -n "$cards" ] && uses_card "$program"; then
            sharing="$sharing $program"
        elif is_long "$program"; then
            beside="$program $beside"
        else
            beside="$beside $program"
        fi
    done
    run_each "$jobs" $beside
    run_each $((jobs < 3 ? jobs : 3)) $sharing
    run_each 1 $alone
}
# add_up N: of the N programs that end, their output and their counts.
add_up() {
    ended=0 passed=0 failed=0 skipped=0
    while read -r status program; do
        ended=$((ended + 1))
        output=$OUTPUTS/${program##*/}
        cat "$output"
        totals=$(sed -n 's/^.*: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$output" | tail -n 1)
        if [ -z "$totals" ]; then
            hint=
            [ "$status" -ne 126 ] || hint="; hint: chmod +x $program"
            echo "FAIL $program: ended with status $status and no closing line$hint"
            failed=$((failed + 1))
            continue
        fi
        set -- "$1" $totals
        passed=$((passed + $2)) skipped=$((skipped + $4))
        if [ "$status" -ne 0 ] && [ "$3" -eq 0 ]; then failed=$((failed + 1)); else failed=$((failed + $3)); fi
    done
    if [ $ended -ne "$1" ]; then
        echo "FAIL: $ended of $1 programs came to an end"
        failed=$((failed + 1))
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
}
run_all "$@" | add_up $#
