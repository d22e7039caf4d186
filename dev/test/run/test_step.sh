#!/bin/sh
# A training step as a user runs it on a GPU: losses read a step late, graph replay, evaluation, saving and resuming in
# between, all with the same bits; and the profile. Skipped where there is no GPU or no train_gpt2cu.
# Usage: dev/test/run/test_step.sh [PROGRAM], from the repository root. Ends with 'step: N passed, N failed, N skipped'.
set -u
program=${1:-./train_gpt2cu}
test=step
. dev/test/user.sh

run() {
    "$program" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
}
# same_weights A B: the last checkpoints of two runs are there and equal, bit for bit.
same_weights() {
    for file in model.safetensors optimizer.safetensors; do
        cmp -s "$work/$1/step_00000013/$file" "$work/$2/step_00000013/$file" || return 1
    done
}
# losses FOLDER: step, loss and norm of every step in the log.
losses() { sed -n 's/^{"step": *\([0-9]*\), *"loss": *\([^,]*\),.*"norm": *\([^,]*\),.*/\1 \2 \3/p' "$1/log.jsonl"; }
same_losses() { losses "$work/$1" >"$work/a"; losses "$work/$2" >"$work/b"; [ -s "$work/a" ] && cmp -s "$work/a" "$work/b"; }

last_loss() { losses "$work/$1" | tail -n 1 | cut -d " " -f 2; }
# The losses of two runs are within 1 %, the norms within 3 %.
near() {
    losses "$work/$1" >"$work/a"; losses "$work/$2" >"$work/b"
    [ -s "$work/a" ] && paste -d ' ' "$work/a" "$work/b" | awk '
        function off(x, y) { return (x > y ? x - y : y - x) / y }
        NF != 6 || off($2, $5) > 0.01 || off($3, $6) > 0.03 { bad = 1 }
        END { exit bad }'
}

make_text 400
small="--train $work/text.txt --model nano --layers 2 --batch 3 --seq 70 --tokens-per-step 630 --steps 13 --warmup 2 --eval-batches 2 --sample-tokens 8 --seed 7"

# takes_a_step FILE: by a trace its ops take the time of a step.
takes_a_step() { awk -F '"ms of [^"]*": *' 'NR == 1 { ops = $2 + 0; step = $3 + 0; bad = !(ops > 0.7 * step && ops <= step && step < 3 * $4) } END { exit bad }' "$1"; }
# one DEVICE: everything on one device.
one() {
    device=$1
    run $small --device "$device" --out "$work/$device" --eval-every 0
    check "$device: exit code $status" [ "$status" -eq 0 ]
    check "$device: every step is in the log once, in order" [ "$(losses "$work/$device" | cut -d ' ' -f 1 | tr '\n' ' ')" = "1 2 3 4 5 6 7 8 9 10 11 12 13 " ]
    check "$device: the first ten lines and the last are printed" [ "$(grep -c '^step .*norm' "$work/out")" -ge 11 ]
    run $small --device "$device" --out "$work/$device.busy" --eval-every 2 --sample-every 3 --save-every 4
    check "$device: evaluation, samples and saving in between change no loss" same_losses "$device" "$device.busy"
    check "$device: nor the weights" same_weights "$device" "$device.busy"
    cp -r "$work/$device.busy" "$work/$device.resumed" && rm -rf "$work/$device.resumed/step_00000012" "$work/$device.resumed/step_00000013"
    run $small --device "$device" --out "$work/$device.resumed" --eval-every 0 --resume
    check "$device: resumed at step 8, the same losses" same_losses "$device" "$device.resumed"
    check "$device: resumed at step 8, the same weights" same_weights "$device" "$device.resumed"
    for recompute in linear block; do
        run $small --device "$device" --out "$work/$device.$recompute" --eval-every 0 --recompute $recompute
        check "$device: --recompute $recompute changes no loss" same_losses "$device" "$device.$recompute"
    done
    for try in 1 2 3 4 5; do # a busy machine may hold up the one step that is traced
        rm -f "$work/$device.json"
        run $small --device "$device" --profile-trace "$work/$device.json"
        ! takes_a_step "$work/$device.json" || break
    done
    check "$device: --profile: exit code $status" [ "$status" -eq 0 ]
    check "$device: --profile: a row for attention" grep -qE '^  attention_backward +6 ' "$work/out"
    check "$device: --profile: no op is beyond its roof" awk '/ %$/ && $(NF - 1) > 100 { bad = 1 } END { exit bad }' "$work/out"
    check "$device: MFU is 100 % at most" awk -F '"mfu": *' '/"norm"/ && $2 + 0 > 1 { bad = 1 } END { exit bad }' "$work/$device/log.jsonl"
    check "$device: --profile: its sums" grep -qE '^  all ops +[0-9]+ +[0-9.]+$' "$work/out"
    check "$device: --profile: a step's wall clock" grep -qE 'wall clock +[0-9.]+  the ops are [0-9.]+ % of it$' "$work/out"
    check "$device: --profile-trace: says where" grep -qE "^trace: $work/$device.json, the [0-9]+ ops of one step" "$work/out"
    check "$device: --profile-trace: attention of each layer, twice a micro-step" [ "$(grep '"attention_.*"layer": [0-9]' "$work/$device.json" | wc -l)" -eq $((2 * $(sed -n 's/^  attention_backward  *\([0-9]*\) .*/\1/p' "$work/out"))) ]
    check "$device: --profile-trace: the ops take the time of a step" takes_a_step "$work/$device.json"
    run $small --device "$device" --profile-trace "$work/$device.json"
    check "$device: --profile-trace replaces nothing" eval '[ "$status" -eq 2 ] && grep -q "^error: --profile-trace: .*json is there already (a file)" "$work/err"'
    for try in 1 2 3 4 5; do # one that was over before says nothing
        : >"$work/out"
        "$program" $small --device "$device" --profile >"$work/out" 2>"$work/err" &
        child=$!
        await grep -q 'largest that fits' "$work/out"
        sleep 1 # it measures for three seconds before it times an op
        kill -TERM $child 2>/dev/null
        ended
        [ "$status" -eq 0 ] || break
    done
    check "$device: --profile, stopped: as the signal ends it" [ "$status" -eq 143 ]
    check "$device: --profile, stopped: prints no table" eval '! grep -q "all ops" "$work/out"'
    run $small --device "$device" --profile --out "$work/none"
    check "$device: --profile keeps nothing: exit code $status" [ "$status" -eq 2 ]
}

if [ -x "$program" ] && nvidia-smi >/dev/null 2>&1; then
    one cuda
    run $small --device cuda --out "$work/plain" --eval-every 0 --graph off
    check "launches without a graph: the same losses" same_losses cuda plain
    check "launches without a graph: the same weights" same_weights cuda plain
    # Head sizes beside 64 and 128: d72 and d84 have 96, gpt3:c2560 has 80. What recipes of devices differ in is given.
    for size in 96 80 256 72; do
        wide="--train $work/text.txt --model nano --lr 1e-3 --weight-decay 0.1 --final-lr-fraction 1 --beta2 0.99 --optimizer adamw --dropout 0 --layers 1 --heads 2 --channels $((2 * size)) --batch 2 --seq 150 --tokens-per-step 300 --steps 4 --warmup 2 --eval-every 0 --sample-tokens 0 --seed 7"
        run $wide --device cuda --out "$work/$size"
        run $wide --device cpu --out "$work/$size.cpu"
        check "head size $size: losses and norms near those of the CPU" near "$size" "$size.cpu"
    done
    # Muon's iterations on the momenta of real text: where bf16 takes a singular value out of the interval of the next
    # polynomial, it grows without bound.
    for precision in bf16 fp32; do
        run --model baby --optimizer muon --precision $precision --train README.md --val README.md --batch 16 --seq 256 --tokens-per-step 16384 --steps 12 --warmup 0 --lr 1e-3 --eval-every 0 --sample-tokens 0 --seed 7 --out "$work/$precision"
        check "Muon in $precision: exit code $status" [ "$status" -eq 0 ]
    done
    check "Muon in bf16: the last loss within 2 % of that in fp32" awk -v a="$(last_loss bf16)" -v b="$(last_loss fp32)" 'BEGIN { exit !(a > 0.98 * b && a < 1.02 * b) }'
else
    echo 'skip: training steps on a GPU: no GPU or no train_gpt2cu'
    skipped=$((skipped + 1))
fi
program=./train_gpt2
if [ -x "$program" ]; then one cpu; else skipped=$((skipped + 1)); fi

finish
