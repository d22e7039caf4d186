#!/bin/sh
# The comparisons of dev/results/README.md on every card of this machine at once; tables and runs go to the folder OUT.
# Usage: scripts/measure.sh attention|train OUT [BINARIES]
# attention: two runs of compare_attention.py on each card, the second without the checks.
# train: the configurations of compare_train.py, shared out between two cards or one after another on one.
# BINARIES (default .): a folder with train_gpt2cu, build/libattention.so and build/commit. FlashAttention-3 takes part where its
# package is installed. DEADLINE=S ends what still runs after S seconds: what was measured by then stands; LIMIT=S is
# compare_train.py's --limit. Exit code 1: a run failed; the tables are of the others. Run from the repository root.
set -eu
case ${1:-} in -h | --help) sed -n '2,8s/^# //p' "$0" && exit ;; esac
kind=${1:-} out=${2:-} built=${3:-.}
case $kind in attention | train) ;; *) echo "error: expected attention or train, found '$kind'; hint: scripts/measure.sh --help" >&2; exit 2 ;; esac
[ -d "$out" ] || { echo "error: '$out': no such folder; hint: scripts/measure.sh $kind OUT" >&2; exit 2; }
cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || :)
[ "$cards" -gt 0 ] || { echo 'error: no NVIDIA GPU on this machine; hint: the comparisons time cards alone' >&2; exit 2; }
export PYTHONUNBUFFERED=1
began=$(date +%s) running=
trap '[ -z "$running" ] || kill $running 2>/dev/null' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# left: seconds until the deadline, at least one.
left() {
    seconds=$((${DEADLINE:-86400} - $(date +%s) + began))
    echo $((seconds > 0 ? seconds : 1))
}
# attention CARD
attention() {
    ok=0
    for run in 1 2; do
        flags=
        [ $run = 1 ] || flags=--no-check
        timeout "$(left)" python3 scripts/compare_attention.py --device "$1" --library "$built/build/libattention.so" --rounds 2 $flags \
            --csv "$out/attention_card$1_run$run.csv" || ok=1
    done
    return $ok
}
# pass CARD NAME ARGS...: compare_train.py with a CSV of that name.
pass() {
    card_of_pass=$1 csv=$out/train_card$1_$2.csv
    shift 2
    timeout "$(left)" python3 scripts/compare_train.py --device "$card_of_pass" --program "$built/train_gpt2cu" --limit "${LIMIT:-420}" \
        --csv "$csv" "$@"
}
# train CARD: shares that take about as long on an H200. The first has the configurations of 65,536 tokens a step: the same matrix
# products, tuned once. In the second what may take longest, tuned products of 350M and 1.5B, comes last.
train() {
    first=d12:64x1024,d12:4x16384,d12:1x65536 second=d48:16x1024,d12:1x131072,d24:32x1024
    case $cards,$1 in
    1,0) pass 0 all ;;
    *,0) pass 0 a --only $first ;;
    *,1)
        ok=0
        pass 1 a --only d12:4x1024 || ok=1
        pass 1 b --only $second --ways cudnn/default,flash3/default || ok=1
        pass 1 c --only d24:32x1024,d48:16x1024 --ways flash3/max-autotune-no-cudagraphs || ok=1
        return $ok
        ;;
    esac
}

card=0
while [ "$card" -lt "$cards" ]; do
    (set +e && "$kind" "$card") >"$out/${kind}_card$card.log" 2>&1 &
    running="$running $!"
    card=$((card + 1))
done
failed=0
for pid in $running; do
    wait "$pid" || { failed=1 && echo "note: not all of a card's runs ended well: $out/${kind}_card*.log" >&2; }
done
running=
for part in "$out/${kind}"_card*.csv.part; do [ ! -e "$part" ] || mv "$part" "${part%.part}"; done
tail -n 3 "$out/${kind}"_card*.log
python3 scripts/combine.py "$kind" "$out/${kind}"_card*.csv --csv "$out/compare_$kind.csv" --markdown "$out/compare_$kind.md"
exit $failed
