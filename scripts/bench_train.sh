#!/bin/sh
# Times training steps of GPT-2 on this machine's card, on random tokens: one line for each micro-batch and context.
# Usage: [MODEL=d12] scripts/bench_train.sh [B,T ...], from the repository root, after `make train_gpt2cu`.
# FLAGS='--graph off --recompute block' (any flags of the trainer) go to every run; with '--device cpu' no card is needed, and train_gpt2 is taken where only that is built.
set -eu
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
for shape in "$@"; do
    printf '%s\n' "$shape" | grep -qxE '[1-9][0-9]*,[1-9][0-9]*' && continue
    echo "error: expected B,T, as 64,1024; found '$shape'" >&2
    exit 2
done
program=./train_gpt2cu
[ -x $program ] || program=./train_gpt2 # where only that is built
[ -x $program ] || { echo 'error: ./train_gpt2cu is missing; hint: make train_gpt2cu' >&2; exit 2; }
case ${FLAGS:-} in
*'--device cpu'*) ;;
*) nvidia-smi -L >/dev/null 2>&1 || { echo "error: no NVIDIA GPU on this machine; hint: FLAGS='--device cpu' times the CPU" >&2; exit 2; } ;;
esac
work=$(mktemp -d) ended=
# stop CODE: ends the trainer, so that nothing is written any more, and then this script. $! has it from the moment it begins.
stop() {
    trap '' INT TERM
    trainer=${!:-}
    [ "$trainer" = "$ended" ] || { kill -KILL "$trainer" && wait "$trainer"; } 2>/dev/null || :
    exit "$1"
}
trap 'rm -rf "$work"' EXIT
trap 'stop 130' INT
trap 'stop 143' TERM
python3 scripts/random_shard.py "$work/bench_train_000001.bin"
MODEL=${MODEL:-d12}
case " ${FLAGS:-} " in *" --optimizer "*) ;; *) FLAGS="${FLAGS:+$FLAGS }--optimizer adamw" ;; esac
# steps N: trains N steps of the shape.
steps() {
    rm -rf "$work/run"
    $program --model "$MODEL" --train "$work/bench_train_*.bin" --batch "$B" --seq "$T" --tokens-per-step $((B * T)) ${FLAGS:-} \
        --steps "$1" --sample-tokens 0 --eval-every 0 --out "$work/run" --model-only >"$work/log.txt" &
    wait "$!" || exit
    ended=$!
}
echo "$(nvidia-smi --query-gpu=name,uuid,power.limit,driver_version --format=csv,noheader 2>/dev/null | head -n 1); $($program --version)"
echo "$MODEL, median of the steps after 1 s of at least 6.5 s ${FLAGS:+(}${FLAGS:-}${FLAGS:+)}"
echo '   B       T   ms/step     tok/s    MFU %   timed s   memory planned and measured'
for shape in "${@:-64,1024}"; do
    B=${shape%,*} T=${shape#*,}
    steps 12
    steps "$(python3 - "$work/run/log.jsonl" <<'PY'
import json, sys
ms = [row["ms"] for row in map(json.loads, open(sys.argv[1])) if "ms" in row][2:]
print(1 + int(6500 / min(ms)))
PY
    )"
    python3 - "$work/run/log.jsonl" "$work/log.txt" "$B" "$T" <<'PY'
import json, re, sys
rows, passed = [r for r in map(json.loads, open(sys.argv[1])) if "ms" in r][1:], 0.0
while len(rows) > 1 and passed < 1000:
    passed += rows.pop(0)["ms"]
seconds = sum(r["ms"] for r in rows) / 1000
rows.sort(key=lambda r: r["ms"])
r = rows[len(rows) // 2]
memory = re.search(r"planned (.*), measured (.*)", open(sys.argv[2]).read())
print(f"{sys.argv[3]:>4} {sys.argv[4]:>7} {r['ms']:9.2f} {r['tok_s']:9.0f} {100 * r['mfu']:8.1f} {seconds:9.1f}   {memory[1]}, {memory[2]}")
PY
    rm -rf "$work/run"
done
