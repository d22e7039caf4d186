#!/bin/sh
# The lab's checks on a card: every row's quick ones, and the Hopper kernels of attention at all sizes, with a mask and
# without, more tiles than SMs among them. Under a minute on an H200.
# Usage: dev/test/dev/test_lab_card.sh, from the repository root; `make test` builds dev/lab where there is a card.
set -u
if [ ! -x dev/lab ] || ! nvidia-smi -L >/dev/null 2>&1; then
    echo "skip: the lab's checks on a card: $([ -x dev/lab ] && echo 'no card' || echo 'dev/lab is not built')"
    echo "lab_card: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
test=lab_card
. dev/test/user.sh

# clean WHAT ARGS...: the lab with these arguments checks something, and nothing fails.
clean() {
    clean_what=$1
    shift
    timeout 300 dev/lab --check "$@" >"$work/all" 2>"$work/err"
    clean_status=$?
    grep -E '^FAIL' "$work/all" | head -n 5 >"$work/out"
    check "$clean_what: exit code $clean_status" [ "$clean_status" -eq 0 ]
    check "$clean_what: $(tail -n 1 "$work/all")" grep -qE '^lab: [1-9][0-9]* passed, 0 failed' "$work/all"
}

clean "every row, quick" --quick
if nvidia-smi --query-gpu=compute_cap --format=csv,noheader | grep -q '^9.0'; then
    clean "Hopper's attention, causal" 'attention_*' --variant 'sm90*' --head-size 64,128 --causal 1
    clean "Hopper's attention, without a mask" 'attention_*' --variant 'sm90*' --head-size 64,128 --causal 0
fi

finish
