#!/bin/sh
# GPT-2 124M on 10 billion tokens of FineWeb: --recipe llm.c, 18,865 steps of 524,288 tokens, but for two flags, which it says.
# Reproduces a validation loss of about 3.28. Can be stopped (ctrl-C, SIGTERM) and started again: it goes on from the newest whole checkpoint.
# Looks for the card, then for what it needs to build and to download, before it does either; exit 2 where one is missing.
# Usage: scripts/run_gpt2_124M.sh [FLAG ...], from the repository root; flags are handed to the trainer.
set -eu
# need WHAT HINT COMMAND...: one line and exit 2 where the command fails.
need() {
    what=$1 hint=$2
    shift 2
    "$@" >/dev/null 2>&1 || { echo "error: $what; hint: $hint" >&2; exit 2; }
}
have_nvcc() { command -v "${NVCC:-nvcc}" || [ -x /usr/local/cuda/bin/nvcc ]; }
have_data() { ls data/fineweb10B/fineweb_train_*.bin && ls data/fineweb10B/fineweb_val_*.bin; }
need 'train_gpt2.cu is not here' 'start it from the repository root' test -f train_gpt2.cu
need 'no NVIDIA GPU on this machine' 'on a CPU: make train_gpt2 && ./train_gpt2' nvidia-smi -L
[ -x ./train_gpt2cu ] || need 'nvcc not found' 'install the CUDA Toolkit and put its bin on the PATH' have_nvcc
have_data >/dev/null 2>&1 || need 'the data are missing, and python3, which prepares them' 'install Python 3' command -v python3
[ -x ./train_gpt2cu ] || make train_gpt2cu
have_data >/dev/null 2>&1 || make data/fineweb10B
echo 'recipe llm.c, but --eval-batches 160 for 20: the 10 x 2^20 tokens of which 3.28 is reported'
echo 'recipe llm.c, but --save-every 1000 for 5000: a kill costs minutes, not an hour'
exec ./train_gpt2cu --recipe llm.c --train 'data/fineweb10B/fineweb_train_*.bin' --val 'data/fineweb10B/fineweb_val_*.bin' \
    --eval-batches 160 --save-every 1000 --out out/124M --keep 3 --resume "$@"
