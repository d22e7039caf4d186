#!/bin/sh
# A checkpoint knows no ranks: saved by M, resumed by N, for all of 1 to 4. With --reproducible all ends have the same bits, and
# those of a run that nobody stopped; without it those of the same count. Usage: dev/test/run/test_elastic.sh [PROGRAM].
set -u
program=$(realpath "${1:-./train_gpt2}")
test=elastic
. dev/test/user.sh

make_text 200
flags="--heads 2 --channels 32 --seq 16 --batch 1 --tokens-per-step 192 --steps 4 --save-every 2 --eval-every 0 --eval-batches 1
    --warmup 0 --seed 7 --train $work/text.txt --sample-tokens 0"
# same A B: two checkpoints with equal weights and states, byte for byte.
same() { cmp -s "$1/model.safetensors" "$2/model.safetensors" && cmp -s "$1/optimizer.safetensors" "$2/optimizer.safetensors"; }
# goes_on M N FLAGS: half by M ranks, saved; the rest by N, in $work/M_N.
goes_on() {
    m=$1 n=$2
    shift 2
    mkdir "$work/${m}_$n"
    cp -r "$work/by_$m/step_00000002" "$work/${m}_$n/"
    run $flags "$@" --gpus $n --out "$work/${m}_$n" --resume
    check "saved by $m, resumed by $n: exit code $status" [ "$status" -eq 0 ]
}

for n in 1 2 3 4; do
    run $flags --layers 2 --reproducible 12 --gpus $n --out "$work/by_$n"
    check "$n ranks: exit code $status" [ "$status" -eq 0 ]
done
for m in 1 2 3 4; do
    for n in 1 2 3 4; do
        goes_on $m $n --layers 2 --reproducible 12
        check "saved by $m, resumed by $n: the weights of a run that went through" same "$work/${m}_$n/step_00000004" "$work/by_1/step_00000004"
    done
done
rm -r "$work"/?_? "$work"/by_?

# Of three blocks, one a rank; of two ranks the first has two, of four one has none.
muon="--layers 3 --optimizer muon --reproducible 12 --lr 0.01"
for n in 1 3; do
    run $flags $muon --gpus $n --out "$work/by_$n"
    check "Muon, $n ranks: exit code $status" [ "$status" -eq 0 ]
done
check "Muon, 3 ranks: the weights of one" same "$work/by_3/step_00000004" "$work/by_1/step_00000004"
for pair in "1 2" "3 1" "3 4"; do
    goes_on $pair $muon
    check "Muon, saved by ${pair% *}, resumed by ${pair#* }: the weights of a run that went through" \
        same "$work/${pair% *}_${pair#* }/step_00000004" "$work/by_1/step_00000004"
done
# states PREFIX: tensors whose names begin so.
states() { grep -ao "\"$1\.[a-z0-9._]*\"" "$work/by_1/step_00000004/optimizer.safetensors" | wc -l; }
check "Muon: momentum of 12 matrices, moments of 28 other tensors" [ "$(states momentum) $(states m) $(states v)" = "12 28 28" ]
rm -r "$work/by_1/step_00000004"
run $flags --layers 3 --reproducible 12 --out "$work/by_1" --resume --optimizer adamw
refused "another optimizer" '--resume: .*step_00000002: expected the states of --optimizer adamw, found those of muon; hint: --optimizer muon, or '
rm -r "$work"/?_? "$work"/by_?

run $flags --layers 2 --gpus 3 --out "$work/by_3"
check "3 ranks, any order: exit code $status" [ "$status" -eq 0 ]
goes_on 3 3 --layers 2
check "3 ranks, any order: resumed by as many, the same weights" same "$work/3_3/step_00000004" "$work/by_3/step_00000004"

# What is asked for is not forgotten where the ranks of a while cannot do it: a step is 12 micro-steps of 16 tokens, of five ranks 10.
rm -r "$work/by_3"
run $(echo "$flags" | sed 's/--steps 4/--steps 2/') --layers 1 --gpus 4 --out "$work/asked"
check "192 tokens a step by 4 ranks: exit code $status" [ "$status" -eq 0 ]
steps=2
for pair in "5 160" "3 192" "5 160" "1 192"; do
    steps=$((steps + 1))
    run --gpus ${pair% *} --resume --out "$work/asked" --steps $steps
    check "192 tokens a step by ${pair% *} ranks: exit code $status" [ "$status" -eq 0 ]
    check "192 tokens a step by ${pair% *} ranks: ${pair#* }" [ "$(sed -n 's/.*"tokens-per-step": *\([0-9]*\).*/\1/p' "$work/asked/log.jsonl" | tail -n 1)" = "${pair#* }" ]
done

# A disk that fails in the middle of a save leaves no rank waiting.
if [ -w /dev/full ]; then
    (ulimit -f 40 && exec "$program" --device cpu $flags --layers 2 --gpus 3 --out "$work/small") >"$work/out" 2>"$work/err" </dev/null
    status=$?
    check "files of 20 KB at most: exit code $status, expected 1" [ "$status" -eq 1 ]
    check "files of 20 KB at most: the save is what failed" grep -q 'not saved' "$work/err"
    check "files of 20 KB at most: nothing half-written" [ -z "$(ls -d "$work"/small/step_* "$work"/small/.tmp* 2>/dev/null)" ]
fi
finish
