#!/bin/sh
# Times training steps of GPT-2 124M on this machine's card, on random tokens: one line for each micro-batch and context.
# Usage: scripts/bench_train.sh [B,T ...], from the repository root, after `make train_gpt2cu`.
set -eu
[ -x ./train_gpt2cu ] || { echo 'error: ./train_gpt2cu is missing; hint: make train_gpt2cu' >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A shard of 2^22 + 1 hashed tokens: speed does not depend on what they say, but zeros would flatter (a card draws less power).
python3 - "$work/bench_train_000001.bin" <<'PY'
import array, sys
n, x, tokens = (1 << 22) + 1, 1, array.array("H")
for _ in range(n):
    x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
    tokens.append((x >> 33) % 50257)
with open(sys.argv[1], "wb") as f:
    array.array("i", [20240520, 1, n] + [0] * 253).tofile(f)
    tokens.tofile(f)
PY
echo 'GPT-2 124M (d12), median of the last 40 of 60 steps'
echo '   B       T   ms/step     tok/s    MFU %'
for shape in "${@:-64,1024}"; do
    B=${shape%,*} T=${shape#*,}
    ./train_gpt2cu --model d12 --train "$work/bench_train_*.bin" --batch "$B" --seq "$T" --tokens-per-step $((B * T)) \
        --steps 60 --sample-tokens 0 --eval-every 0 --out "$work/run" --model-only >"$work/log.txt" || { cat "$work/log.txt"; exit 1; }
    python3 - "$work/run/log.jsonl" "$B" "$T" <<'PY'
import json, sys
rows = [r for r in map(json.loads, open(sys.argv[1])) if "ms" in r][20:]
rows.sort(key=lambda r: r["ms"])
r = rows[len(rows) // 2]
print(f"{sys.argv[2]:>4} {sys.argv[3]:>7} {r['ms']:9.2f} {r['tok_s']:9.0f} {100 * r['mfu']:8.1f}")
PY
    rm -rf "$work/run"
done
