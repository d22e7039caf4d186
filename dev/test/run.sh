#!/bin/sh
# Runs the test programs named as arguments and adds up their closing lines.
# Ends with 'N passed, N failed, N skipped'; a program that dies without a closing line counts as one failure.
passed=0 failed=0 skipped=0
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # waiting threads leave the cores to whatever else runs here
for program in "$@"; do
    output=$("$program" 2>&1)
    status=$?
    printf '%s\n' "$output"
    totals=$(printf '%s\n' "$output" | sed -n 's/^.*: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' | tail -n 1)
    if [ -z "$totals" ]; then
        echo "FAIL $program: ended with status $status and no closing line"
        failed=$((failed + 1))
        continue
    fi
    set -- $totals
    passed=$((passed + $1)) skipped=$((skipped + $3))
    if [ "$status" -ne 0 ] && [ "$2" -eq 0 ]; then failed=$((failed + 1)); else failed=$((failed + $2)); fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
