#!/bin/sh
# Runs the tests of dev/test/scripts/ in the files that PATTERN names, and ends with the closing line of dev/test/run.sh.
# Usage: [FAILFAST=1] dev/test/scripts/run.sh NAME PATTERN, from the repository root. Needs python3 and its standard library.
set -u
test=$1
. dev/test/user.sh
if ! command -v python3 >/dev/null 2>&1; then
    echo "$test: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
TMPDIR=$work python3 -B -W ignore -m unittest discover ${FAILFAST:+-f} -s dev/test/scripts -p "$2" >"$work/out" 2>"$work/err"
status=$?
ran=$(sed -n 's/^Ran \([0-9]*\) tests* in .*/\1/p' "$work/err")
bad=$(sed -n 's/^FAILED (\(.*\))$/\1/p' "$work/err" | tr ',' '\n' | sed -n 's/^ *\(failures\|errors\)=//p' | paste -sd+ -)
skipped=$(sed -n 's/^\(OK\|FAILED\) (.*skipped=\([0-9]*\)).*/\2/p' "$work/err")
failed=$((${bad:-0})) skipped=${skipped:-0}
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
[ "$failed" -eq 0 ] || { echo "FAIL $test:" && cat "$work/err"; }
passed=$((${ran:-0} - failed - skipped))
[ "${ran:-0}" -gt 0 ] || { echo "FAIL $test: no test ran" && failed=$((failed + 1)); }
finish
