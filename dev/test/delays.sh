#!/bin/sh
# The op tests with kernels that pause at barriers: they must pass, and every output must have the bits that the same test
# gets without pauses. What differs hangs on timing.
# Usage: dev/test/delays.sh FOLDER DELAYED_FOLDER PROGRAM..., from the repository root: `make delays`. ROUNDS=N (default 2)
# runs each delayed program so often. Ends with 'delays: N passed, N failed, N skipped'.
set -u
test=delays
. dev/test/user.sh

plain=$1 delayed=$2
shift 2
: >"$work/out"
: >"$work/err"
for program in "$@"; do
    "$plain/$program" bits >"$work/plain" 2>&1
    status=$?
    check "$program: exit code $status without pauses: $(grep -m 1 '^FAIL' "$work/plain")" [ "$status" -eq 0 ]
    grep '^bits ' "$work/plain" >"$work/plain.bits"
    check "$program: prints the bits of its outputs" [ -s "$work/plain.bits" ]
    round=0
    while [ "$round" -lt "${ROUNDS:-2}" ]; do
        round=$((round + 1))
        timeout 300 "$delayed/$program" bits >"$work/delayed" 2>&1
        status=$?
        check "$program, round $round: exit code $status with pauses: $(grep -m 1 '^FAIL' "$work/delayed")" [ "$status" -eq 0 ]
        grep '^bits ' "$work/delayed" >"$work/delayed.bits"
        check "$program, round $round: other bits with pauses: $(diff "$work/plain.bits" "$work/delayed.bits" | grep -m 1 '^>')" \
            cmp -s "$work/plain.bits" "$work/delayed.bits"
    done
done

finish
