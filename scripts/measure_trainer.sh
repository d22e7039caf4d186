#!/bin/sh
# Figures of the trainer alone, on two cards of this machine at once (or one after the other on one); files go to OUT.
# Usage: scripts/measure_trainer.sh OUT TRAIN.bin VAL.bin
# bench.txt: bench_train.sh with and without CUDA graphs. profile.txt: --profile. default_run.txt: the run without flags, on the card;
# cpu.txt: the same on two cores, and their matrix products and attention. precision_{bf16,fp32}.jsonl: 200 steps of d12 on the shards. context.csv: scripts/context.py.
# MILLION=1: a step of a million tokens, too, 5 minutes. Exit code 1: a run failed; the others went on. Run from the repository root after `make train_gpt2cu dev` and `make NVCC= train_gpt2`.
set -eu
case ${1:-} in -h | --help) sed -n '2,6s/^# //p' "$0" && exit ;; esac
[ $# -eq 3 ] && [ -d "$1" ] && [ -r "$2" ] && [ -r "$3" ] || { echo 'error: expected a folder and two shards; hint: scripts/measure_trainer.sh --help' >&2; exit 2; }
out=$1 train=$2 val=$3
cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || :)
[ "$cards" -gt 0 ] || { echo 'error: no NVIDIA GPU on this machine' >&2; exit 2; }

# header CARD: what a reader needs to repeat a run.
header() {
    nvidia-smi -i "$1" --query-gpu=name,uuid,power.limit,driver_version --format=csv,noheader
    ./train_gpt2cu --version
}
short() {
    export CUDA_VISIBLE_DEVICES=0
    ok=0
    { scripts/bench_train.sh 64,1024 4,1024 1,1024 && FLAGS='--graph off' scripts/bench_train.sh 64,1024 4,1024 1,1024; } >"$out/bench.txt" || ok=1
    { header 0 && ./train_gpt2cu --model d12 --optimizer adamw --train "$train" --val "$val" --tokens-per-step 65536 --profile; } >"$out/profile.txt" || ok=1
    { header 0 && ./train_gpt2cu; } >"$out/default_run.txt" || ok=1
    for precision in bf16 fp32; do
        ./train_gpt2cu --model d12 --optimizer adamw --train "$train" --val "$val" --batch 32 --seq 1024 --tokens-per-step 32768 --steps 200 \
            --eval-every 50 --eval-batches 1 --sample-tokens 0 --precision $precision --out "$out/precision_$precision" --model-only || ok=1
        { header 0 | sed 's/^/{"card": "/; s/$/"}/' && cat "$out/precision_$precision/log.jsonl"; } >"$out/precision_$precision.jsonl" || ok=1
        rm -rf "$out/precision_$precision"
    done
    [ -z "${MILLION:-}" ] || scripts/context.py --limit 600 --csv "$out/context_million.csv" --png /tmp/x.png --modes linear --seq 1048576 || ok=1
    return $ok
}
context() {
    export CUDA_VISIBLE_DEVICES=$((cards - 1))
    ok=0
    scripts/context.py --limit 60 --csv "$out/context.csv" --png /tmp/context.png --modes flash --seq 1024,4096,16384,65536,131072,262144 || ok=1
    scripts/context.py --limit 60 --csv "$out/context.csv" --png /tmp/context.png --modes gelu,linear --seq 16384,65536,131072 || ok=1
    scripts/context.py --limit 60 --csv "$out/context.csv" --png /tmp/context.png --modes linear --seq 262144 || ok=1
    scripts/context.py --limit 60 --csv "$out/context.csv" --png /tmp/context.png --modes block --seq 65536,131072 || ok=1
    scripts/context.py --limit 60 --csv "$out/context.csv" --png /tmp/context.png --modes standard --seq 1024,4096,16384 || ok=1
    return $ok
}
two_cores() {
    lscpu | grep 'Model name' || :
    ./train_gpt2 --version
    OMP_NUM_THREADS=2 taskset -c "$1" ./train_gpt2 --device cpu
    OMP_NUM_THREADS=2 taskset -c "$1" build/bench_cpu
}

failed=0
# ended PID
ended() { wait "$1" || { failed=1 && echo 'note: a part of the runs failed' >&2; }; }
short &
jobs=$!
[ "$cards" -gt 1 ] || { ended "$jobs" && jobs=; }
context &
jobs="$jobs $!"
[ ! -x ./train_gpt2 ] || { two_cores 4,6 >"$out/cpu.txt" & jobs="$jobs $!"; }
for pid in $jobs; do ended "$pid"; done
exit $failed
