#!/bin/sh
# --reproducible as a user runs it: checkpoints, losses and norms of 1, 2, 3 and 4 ranks are the same files and figures, and a
# run that goes on at another number of ranks ends where one without a break does.
# Usage: dev/test/run/test_reproducible.sh [PROGRAM], from the repository root.
set -u
program=$(realpath "${1:-./train_gpt2}")
test=reproducible_runs
. dev/test/user.sh

make_text 200
tiny="--layers 2 --heads 5 --channels 40 --seq 16 --batch 1 --dropout 0.1 --warmup 0 --seed 7 --train $work/text.txt --sample-tokens 0"
steps="--steps 4 --save-every 2 --eval-every 2 --eval-batches 3"
# tensors DIR: of every checkpoint, weights and moments.
tensors() { (cd "$1" && sha256sum step_*/*.safetensors); }
# figures DIR: losses and norms, as they were written; a save's line comes when it is done.
figures() { sed -n '/loss"/s/"\(step\|loss\|val_loss\|norm\)": *\([0-9.e+-]*\)/\n\1 \2\n/gp' "$1/log.jsonl" | grep -E '^(step|loss|val_loss|norm) '; }
same() { "$1" "$2" >"$work/a" && "$1" "$3" >"$work/b" && [ -s "$work/a" ] && cmp -s "$work/a" "$work/b"; }
differ() { ! same "$@"; }

for n in 1 2 3 4; do
    run $tiny $steps --reproducible 12 --gpus $n --out "$work/of_$n"
    check "$n ranks: exit code $status" [ "$status" -eq 0 ]
    [ $n -eq 1 ] && continue
    check "$n ranks: the checkpoints of one" same tensors "$work/of_1" "$work/of_$n"
    check "$n ranks: the losses and norms of one" same figures "$work/of_1" "$work/of_$n"
done
check "the header says so" grep -q '^numerics .*, sums in a tree of 12 leaves$' "$work/out"
check "two checkpoints" [ "$(tensors "$work/of_1" | wc -l)" -eq 4 ]
check "losses and norms of four steps" [ "$(figures "$work/of_1" | grep -cE '^(loss|norm) [0-9]')" -eq 8 ]
check "losses of two validations" [ "$(figures "$work/of_1" | grep -c '^val_loss [0-9]')" -eq 2 ]

# What the tree is for: without it the same steps round differently.
run $tiny $steps --tokens-per-step 192 --gpus 4 --out "$work/plain"
check "without: exit code $status" [ "$status" -eq 0 ]
check "without: other bits" differ tensors "$work/of_1" "$work/plain"

cp -r "$work/of_3" "$work/broken"
rm -r "$work/broken/step_00000004"
run $tiny $steps --reproducible 12 --gpus 2 --out "$work/broken" --resume
check "three ranks, then two: exit code $status" [ "$status" -eq 0 ]
check "three ranks, then two: the checkpoints of one" same tensors "$work/of_1" "$work/broken"
run $tiny --steps 5 --tokens-per-step 192 --reproducible 6 --gpus 2 --out "$work/broken" --resume
check "another tree is named" grep -q -- '--reproducible was 12 in the checkpoint, the run goes on with 6' "$work/err" "$work/out"

run $tiny --reproducible 12 --gpus 5
refused "five ranks" '--reproducible 12 is not a multiple of 5 ranks.*; hint: --reproducible 10 is nearest'
run $tiny --reproducible 12 --tokens-per-step 160
refused "too short a step" '--tokens-per-step 160 is not a multiple of .* 12 leaves \(--reproducible\) = 192; hint: '
finish
