#!/bin/sh
# The lab as a user runs it: bad usage, --list, the CPU's rows, the CSV file. It sees no GPU, where there is one: about 6 s anywhere.
# Usage: dev/test/dev/test_lab.sh [PROGRAM], from the repository root; `make test` builds the program, the lab without CUDA. Ends with 'lab: N passed, ...'.
set -u
CUDA_VISIBLE_DEVICES=
export CUDA_VISIBLE_DEVICES
program=${1:-build/lab_cpu}
if [ ! -x "$program" ]; then
    echo "skip: $program is not built (make test does it)"
    echo "lab: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
test=lab
. dev/test/user.sh

run() {
    timeout 600 "$program" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
}
# refuses PATTERN ARGS...: exit 2 and one line on stderr that PATTERN (a grep -E) matches.
refuses() {
    case_pattern=$1
    shift
    run "$@"
    refused "$*" "$case_pattern"
}

refuses "unknown flag '--nosuch'" --nosuch
refuses "unknown op 'attention_sideways'.*attention_forward" attention_sideways
refuses "no variant .*'nosuch'; hint: dev/lab --list" attention_forward --variant nosuch
case $program in
*lab_cpu) refuses "no variant .*'p_only'; .*; built without nvcc it has the CPU's rows alone$" attention_backward --variant p_only ;;
esac
refuses "^error: -T: expected.*'12x'" attention_forward -T 12x
refuses "'2048:1024' is an empty range" attention_forward -T 2048:1024
refuses "^error: -T: .*found '0'" attention_forward -T 0
refuses "--head-size: .*found '60'" attention_forward --head-size 60
refuses "--causal: expected 0 or 1; found 'yes'" attention_forward --causal yes
refuses "--repeat: expected a value" --repeat
refuses "--repeat: expected at least 2" --repeat 1
refuses "--seconds: .*found '-1'" --seconds -1
refuses "exclude each other" --burst --sustained
refuses "--csv: /nonexistent/x.csv" --csv /nonexistent/x.csv --check
refuses "--csv: expected FILE; found ''" --csv '' --check
refuses "no variant .*'nosuch'" attention_forward --variant cpu,nosuch
refuses "found ''" ''
refuses "^error: --channels: expected a multiple of 8; found 7$" layernorm_forward --channels 7
refuses "--channels: .*head size 128, which attention_forward takes; found 64" 'attention*' --channels 64
refuses "--channels: .*head size 64.*found 104" attention_forward --head-size 8,64 --channels 104
refuses "--fill: .*'nosuch'" attention_forward --fill normal,nosuch
refuses "--window is of timing, which --check leaves out" attention_forward --check --window 10
refuses "--repeat is of checks, which --time leaves out" attention_forward --time --repeat 3
refuses "nothing was checked" attention_forward --variant 'cpu,!cpu' --check

"$program" --list >/dev/full 2>"$work/err"
check "a full disk behind --list is a failure" [ $? -eq 1 ]
run layernorm_forward --variant cpu --check
check "the reference is skipped, not passed" grep -qx 'lab: 0 passed, 0 failed, 1 skipped' "$work/out"

run --help
check "--help: exit code" [ "$status" -eq 0 ]
check "--help: names every flag" grep -q -- '--batch-tokens N' "$work/out"
run --list
check "--list: exit code" [ "$status" -eq 0 ]
check "--list: ops" grep -qx 'attention_backward' "$work/out"
check "--list: rows" grep -qE '^  cpu +fp32  ' "$work/out"

run attention_forward attention_backward --variant cpu --check --quick --head-size 24 --repeat 3 --csv "$work/check.csv"
check "CPU rows: exit code" [ "$status" -eq 0 ]
check "CPU rows: none failed" grep -qE '^lab: [1-9][0-9]* passed, 0 failed, 0 skipped$' "$work/out"
check "CPU rows: NaN inputs are among them" grep -q 'nan key' "$work/out"
echo 'a text of mine' >"$work/mine.csv"
run attention_forward --variant cpu --check --quick --head-size 24 --csv "$work/mine.csv"
check "CSV: a file of another kind is refused: exit code $status" [ "$status" -eq 2 ]
check "CSV: a file of another kind stays" grep -qx 'a text of mine' "$work/mine.csv"
check "CSV: commit" grep -qE '^# commit .' "$work/check.csv"
check "CSV: command" grep -q '^# command .*--head-size 24' "$work/check.csv"
header_cells=$(grep '^kind,' "$work/check.csv" | tr -cd , | wc -c)
check "CSV: every line has the header's cells" \
    [ "$(grep -v '^#' "$work/check.csv" | tr -cd ',\n' | awk '{ print length }' | sort -u)" = "$header_cells" ]

run 'gelu*' --variant textbook --check --repeat 3
check "GELU in plain C: exit code" [ "$status" -eq 0 ]
check "GELU in plain C: forward and its derivative" grep -qx 'lab: 6 passed, 0 failed, 0 skipped' "$work/out"

run layernorm_forward --variant cpu --time --seconds 0.05 --csv "$work/time.csv"
check "timing: exit code" [ "$status" -eq 0 ]
check "timing: one row" [ "$(grep -c '^time,layernorm_forward,cpu,fp32' "$work/time.csv")" -eq 1 ]
check "timing: a roof" grep -q '= 100 %' "$work/out"
check "timing: counts" grep -qx 'lab: 1 timed, 0 left out' "$work/out"
run layernorm_forward --variant cpu --time --seconds 0.05 --csv /dev/full
check "CSV on a full disk: exit code $status, expected 1" [ "$status" -eq 1 ]
refuses "--roofs: /nonexistent/roofs" layernorm_forward --variant cpu --time --roofs /nonexistent/roofs
printf 'notes of mine\n' >"$work/notes"
refuses "--roofs: .*/notes:1: expected" layernorm_forward --variant cpu --time --roofs "$work/notes"
check "--roofs: another file stays as it was" [ "$(cat "$work/notes")" = 'notes of mine' ]
refuses "--roofs: $work: Is a directory" layernorm_forward --variant cpu --roofs "$work"
printf 'cpu fp32: 1e9 bytes/s, 1e9 FLOP/s\n' >"$work/roofs"
run attention_forward --variant cpu,textbook --time --seconds 0.01 --longest 1e-6 -T 64,128 --batch-tokens 1 --head-size 8 --channels 8 \
    --causal 1 --roofs "$work/roofs"
check "roofs of a file" grep -q 'copy 1 GB/s, multiply-adds 0.00 TFLOP/s' "$work/out"
check "--longest: the first size is timed" [ "$(grep -c '^time .* 1 x 64,' "$work/out")" -eq 2 ]
check "--longest: the second is left out with a line" [ "$(grep -c '^skip .* 1 x 128,.*a call would take' "$work/out")" -eq 2 ]
run attention_forward --variant cpu --once -T 64 --window 16 --head-size 8 --channels 8 --batch-tokens 1 --causal 1 --csv "$work/once.csv"
check "--once: one call, its FLOP by the window's pairs" grep -qE '^once,attention_forward,cpu,fp32,,1,64,64,1,8,8,1,0,0,16,.*,2.8672e-05,' "$work/once.csv"

if command -v python3 >/dev/null 2>&1; then
    dev/tables.py --list >"$work/out" 2>&1
    check "tables.py --list: eleven tables" [ "$(grep -cE '^ ?[0-9]+ [a-z_]+ ' "$work/out")" -eq 11 ]
    dev/tables.py nosuch >"$work/out" 2>"$work/err"
    check "tables.py: an unknown table is bad usage" [ $? -eq 2 ]
    dev/attention/walkthrough.py >"$work/out"
    check "the walk-through ends equal to the plain softmax" [ $? -eq 0 ]
    for script in textbook framework; do
        dev/attention/$script.py --help >"$work/out" 2>"$work/err"
        check "$script.py --help: exit code $?, its usage" grep -q "dev/attention/$script.py " "$work/out"
    done
fi

finish
