#!/bin/sh
# GPT-2 124M on 10 billion tokens of FineWeb: llm.c's recipe, 19,073 steps of 524,288 tokens. Reproduces a validation loss
# of about 3.28. Can be stopped (ctrl-C, SIGTERM) and started again: it goes on from the newest whole checkpoint.
# Usage: scripts/run_gpt2_124M.sh [FLAG ...], from the repository root; flags are handed to the trainer.
set -eu
[ -x ./train_gpt2cu ] || make train_gpt2cu
ls data/fineweb10B/fineweb_train_*.bin >/dev/null 2>&1 || make data/fineweb10B
exec ./train_gpt2cu --model d12 --train 'data/fineweb10B/fineweb_train_*.bin' --val 'data/fineweb10B/fineweb_val_*.bin' \
    --batch 64 --seq 1024 --tokens-per-step 524288 --steps 19073 --lr 6e-4 --warmup 700 --final-lr-fraction 0 \
    --weight-decay 0.1 --beta2 0.95 --eval-every 250 --eval-batches 160 --sample-every 1000 \
    --out out/124M --save-every 1000 --keep 3 --resume "$@"
