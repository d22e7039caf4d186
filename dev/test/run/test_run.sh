#!/bin/sh
# A training run that goes wrong or is stopped: divergence, NaN, signals. Every run is tiny and on the CPU.
# Usage: dev/test/run/test_run.sh [PROGRAM], from the repository root. Ends with 'run: N passed, N failed, N skipped'.
set -u
program=${1:-./train_gpt2}
test=run
. dev/test/user.sh

says() { grep -qE -e "$1" "$work/out" "$work/err"; }
# failed_with NAME PATTERN: exit 1, and one line on stderr that PATTERN matches.
failed_with() {
    check "$1: exit code $status, expected 1" [ "$status" -eq 1 ]
    check "$1: one line on stderr" [ "$(wc -l <"$work/err")" -eq 1 ]
    check "$1: says /$2/" grep -qE -e "$2" "$work/err"
}
# Checksums of all checkpoints in a folder, by name.
sums() { (cd "$1" && cksum step_*/* 2>/dev/null); }
weights() { cksum <"$1/model.safetensors"; cksum <"$1/optimizer.safetensors"; }

make_text 200
tiny="--layers 1 --heads 2 --channels 32 --batch 2 --seq 16 --warmup 0 --schedule constant --seed 7 --train $work/text.txt"
quiet="--eval-every 0 --eval-batches 2 --sample-tokens 0"

# ---- divergence ----
run $tiny $quiet --steps 6 --save-every 2 --keep 3 --out "$work/good"
check "a good run: exit code $status" [ "$status" -eq 0 ]
sums "$work/good" >"$work/before"
check "a good run: three checkpoints" [ "$(wc -l <"$work/before")" -ge 9 ]
for start in 1 2 3; do
    run $tiny $quiet --steps 200 --save-every 1 --keep 3 --lr 100 --weight-decay 100 --resume --out "$work/good"
    sums "$work/good" >"$work/after"
    failed_with "divergence, start $start" '^error: 3 steps in a row .* not saved, earlier checkpoints stand, up to step 6; hint: a lower --lr'
    check "divergence, start $start: all checkpoints stand, and no other" cmp -s "$work/before" "$work/after"
done
check "divergence: a step that was skipped is not saved" grep -qE '^checkpoint of step [0-9]+ left out: its update was skipped' "$work/out"
check "divergence: a loss beyond all reason is not saved" grep -qE '^checkpoint of step 7 not saved: the weights have diverged, their loss is [0-9.e+]+ where a guess has 5.5;' "$work/out"
check "divergence: nan has no sign" eval '! grep -q -e -nan "$work/out" && grep -q "loss nan" "$work/out"'
left_out=$(sed -n 's/^checkpoint of step \([0-9]*\) left out.*/\1/p' "$work/out" | head -n 1)
run $tiny $quiet --steps 200 --save-every "$left_out" --keep 3 --lr 100 --weight-decay 100 --resume --out "$work/good"
check "divergence: the step behind a skipped one is to be saved in its place" grep -q "^checkpoint of step $((left_out + 1)) left out" "$work/out"
run $tiny $quiet --steps 8 --lr 100 --weight-decay 100 --keep 1 --save-every 100 --resume --out "$work/good"
sums "$work/good" >"$work/after"
failed_with "diverged at the end" '^error: checkpoint of step 8 not saved: .* diverged.* earlier checkpoints stand, up to step 6$'
check "diverged at the end: all checkpoints stand, and no other" cmp -s "$work/before" "$work/after"

# not_again NAME ERROR FLAG...: diverged, with restarts, of which none is made.
not_again() {
    name=$1 error=$2
    shift 2
    run $tiny $quiet --lr 100 --weight-decay 100 --keep 3 --resume --restarts 2 --out "$work/good" "$@"
    check "$name, with restarts: exit code $status, expected 1" [ "$status" -eq 1 ]
    check "$name, with restarts: it is not started again" [ "$(grep -c '^no restart: the same steps' "$work/err") $(grep -c '^restart ' "$work/err")" = '1 0' ]
    check "$name, with restarts: one error" [ "$(grep -c '^error: ' "$work/err") $(grep -c "^error: $error" "$work/err")" = '1 1' ]
}
not_again diverged '3 steps in a row' --steps 200 --save-every 1
not_again "diverged at the end" 'checkpoint of step 8 not saved: .* diverged' --steps 8 --save-every 100

# ---- weights that are NaN ----
mkdir "$work/nan"
cp "$work/good/step_00000006/config.json" "$work/good/step_00000006/model.safetensors" "$work/nan"
bytes=$(wc -c <"$work/nan/model.safetensors")
printf '\377\377\377\177' | dd of="$work/nan/model.safetensors" bs=1 seek=$((bytes - 40)) conv=notrunc 2>/dev/null
nan="--model $work/nan --tokenizer bytes"
run $nan --prompt line
check "sampling from NaN: exit code $status, expected 1" [ "$status" -eq 1 ]
check "sampling from NaN: says so, last of all" sh -c "tail -n 1 '$work/err' | grep -qE '^error: sampling: .* logits of token 1 are NaN'"
run $nan --train "$work/text.txt" --eval-only --batch 2 --eval-batches 2
failed_with "evaluation of NaN" '^error: --eval-only: the validation loss of .*/nan is nan$'
make_items 20
run $nan --eval-only --hellaswag "$work/items.bin" --out "$work/scored"
failed_with "a score of NaN" '^error: --hellaswag: 20 of 20 items have losses of .*/nan that are NaN or infinite$'
check "a score of NaN: is none" grep -q 'hellaswag acc_norm nan | acc nan |' "$work/out"
check "a score of NaN: the log has null" grep -qE '"acc_norm": *null, *"acc": *null, ' "$work/scored/log.jsonl"
run $nan $quiet --train "$work/text.txt" --batch 2 --steps 20 --out "$work/tuned"
failed_with "training from NaN" '3 steps in a row .* stopped at step 3 and not saved, nothing was saved before; hint: see whether the weights of .*/nan are whole$'
check "training from NaN: nothing is saved" [ "$(ls "$work/tuned")" = "$(printf 'log.jsonl\nrun.lock')" ]
check "training from NaN: the log has null" [ "$(grep -c '"loss": *null' "$work/tuned/log.jsonl")" -eq 3 ]

# ---- evaluation and samples of a checkpoint ----
run --model "$work/good" --train "$work/text.txt" --eval-only --eval-batches 2 --batch 2
loss=$(sed -n 's/.*"step": *6, *"val_loss": *\([0-9.]*\).*/\1/p' "$work/good/log.jsonl" | head -n 1)
check "--eval-only: the step, and the loss with seven digits" grep -qx "step 6 | val loss $(printf %.6f "$loss")" "$work/out"
"$program" --device cpu --model "$work/good" --prompt line --sample-tokens 4 >"$work/out" 2>&1
check "a sample of step 6 says so" grep -qx -e '--- sample, step 6 ---' "$work/out"

# ---- signals ----
long="$tiny --steps 100000000"
start $long $quiet --out "$work/stopped"
await has_steps 3 "$work/stopped/log.jsonl"
kill -USR1 $child
await says '^saved step [0-9]+ on request'
check "SIGUSR1: says so" says '^saving after this step$'
check "SIGUSR1: says that it is done" says '^saved step [0-9]+ on request$'
check "SIGUSR1: a checkpoint" eval 'ls "$work"/stopped/step_*/trainer_state.json >/dev/null 2>&1'
n=$(grep -c '"norm"' "$work/stopped/log.jsonl")
await has_steps $((n + 3)) "$work/stopped/log.jsonl"
check "SIGUSR1: the run goes on" has_steps $((n + 3)) "$work/stopped/log.jsonl"
kill -TERM $child
ended
check "SIGTERM: exit code $status" [ "$status" -eq 0 ]
slowest=$(sed -n 's/.*"norm".*"ms": *\([0-9]*\).*/\1/p' "$work/stopped/log.jsonl" | tail -n 2 | sort -n | tail -n 1)
# The step before says how long this one takes: where a busy machine held that up, it is a long one.
check "SIGTERM: is answered, of a short step without a time" eval 'grep -qx "stopping after this step; again: end without saving" "$work/err" || [ "$slowest" -ge 900 ]'

(trap '' HUP; exec "$program" --device cpu $long $quiet --out "$work/nohup") >"$work/out" 2>"$work/err" </dev/null &
child=$!
await has_steps 3 "$work/nohup/log.jsonl"
kill -HUP $child
n=$(grep -c '"norm"' "$work/nohup/log.jsonl")
await has_steps $((n + 3)) "$work/nohup/log.jsonl"
check "nohup: a closed terminal does not end the run" has_steps $((n + 3)) "$work/nohup/log.jsonl"
kill -TERM $child
ended

# stops_in WHAT PATTERN ARGS...: a run that says PATTERN and never comes to the end of WHAT ends there, with what it has learned.
stops_in() {
    what=$1 pattern=$2
    shift 2
    start "$@"
    await says "$pattern"
    computes
    kill -INT $child
    ended
    check "stopped in $what: exit code $status" [ "$status" -eq 0 ]
    check "stopped in $what: a last line" grep -q '^done: step' "$work/out"
}
stops_in "a sample" '^--- sample, step 2 ---$' $long --eval-every 0 --sample-every 2 --sample-tokens 50000000 --out "$work/sampling"
check "stopped in a sample: is answered" grep -qx 'stopping without the rest of this sample; again: end without saving' "$work/err"
check "stopped in a sample: saved" [ -f "$work/sampling/step_00000002/trainer_state.json" ]
check "stopped in a sample: it is not in the log" [ "$(grep -c '"sample":' "$work/sampling/log.jsonl")" -eq 0 ]
stops_in "an evaluation" '^step +2/[0-9]+ .*loss' $long --eval-every 2 --eval-batches 50000000 --out "$work/evaluating"
check "stopped in an evaluation: is answered" grep -qx 'stopping without this evaluation; again: end without saving' "$work/err"
check "stopped in an evaluation: saved" [ -f "$work/evaluating/step_00000002/trainer_state.json" ]
# --resume makes up for it.
validations() { sed -n 's/.*\("step": *[0-9]*, "val_loss": *[0-9.]*\).*/\1/p' "$work/$1/log.jsonl"; }
short="$tiny --steps 4 --eval-every 2 --eval-batches 3 --keep-best --sample-tokens 4"
run $short --out "$work/uncut"
run $short --resume --out "$work/evaluating"
check "a validation that was cut: exit code $status" [ "$status" -eq 0 ]
check "a validation that was cut: says that it comes now" says '^step 2 was saved before its validation, which comes now$'
check "a validation that was cut: the losses of a run that nobody stopped" [ "$(validations evaluating)" = "$(validations uncut)" ]
check "a validation that was cut: the same checkpoints" [ "$(sums "$work/evaluating" | grep -v trainer_state)" = "$(sums "$work/uncut" | grep -v trainer_state)" ]
check "a validation that was cut: its checkpoint has the loss" grep -qE '"val_loss": [0-9]' "$work/evaluating/step_00000004/trainer_state.json"
stops_in "the last evaluation" '^step +2/2 .*loss' $tiny --steps 2 --eval-batches 50000000 --out "$work/last"
run $tiny --steps 2 --eval-batches 3 --sample-tokens 4 --resume --out "$work/last"
check "the last validation was cut: the loss of a run that nobody stopped" [ "$(validations last)" = "$(validations uncut | head -n 1)" ]
check "the last validation was cut: the sample comes, too" says '^--- sample, step 2 ---$'
run $tiny --steps 2 --eval-batches 3 --resume --out "$work/last"
check "the last validation was cut: once" says '^finished: .*/last/step_00000002 has 2 steps'

# A step of a million micro-steps, resumed from whole steps.
run $tiny $quiet --steps 9 --save-every 6 --out "$work/whole"
cp -r "$work/whole" "$work/left" && rm -rf "$work/left/step_00000009"
stops_in "a step" '^a micro-step takes [0-9.]+ s: about [0-9.]+ s a step, [0-9:]+ for the run$' $tiny $quiet --steps 9 --tokens-per-step 32000000 --resume --out "$work/left"
check "stopped in a step: is answered" grep -qE '^stopping without this step \(about [0-9]+ s more\); again: end without saving$' "$work/err"
check "stopped in a step: the steps before it are in the log, no other" [ "$(grep -c '"norm"' "$work/left/log.jsonl")" -eq 6 ]
# Three steps are left: of "about X s a step, H:MM:SS for the run" the time is 3 X.
check "a first step that takes long: the run's time is that of all its steps" awk '
    /^a micro-step takes/ { n = split($11, part, ":"); for (i = 1; i <= n; i++) left = 60 * left + part[i]; step = $7 }
    END { exit !(step > 10 && left > 2.9 * step && left < 3.1 * step) }' "$work/out"
check "stopped in a step: says what is saved" grep -q '^stopped by a signal before the end of its first step' "$work/out"
check "stopped in a step: no other checkpoint" [ "$(ls "$work/left")" = "$(printf 'log.jsonl\nrun.lock\nstep_00000006')" ]
run $tiny $quiet --steps 9 --save-every 6 --resume --out "$work/left"
check "stopped in a step: resumed, the same bits" [ "$(weights "$work/whole/step_00000009")" = "$(weights "$work/left/step_00000009")" ]

# A run whose sample nobody reads cannot come to its end (a pipe holds 64 KiB): the second signal ends it.
mkfifo "$work/pipe"
printf '%0300000d' 0 >"$work/prompt"
(sed '/^--- sample/q' >/dev/null && : >"$work/samples" && exec sleep 600) <"$work/pipe" &
reader=$!
"$program" --device cpu $long --sample-every 1 --prompt-file "$work/prompt" --out "$work/twice" >"$work/pipe" 2>"$work/err" </dev/null &
child=$!
await [ -e "$work/samples" ]
kill -TERM $child
await grep -q '^stopping' "$work/err"
sleep 0.5
: >"$work/out"
check "one signal: the run waits to save" kill -0 $child
kill -TERM $child
ended
check "a second signal: exit code $status" [ "$status" -eq 143 ]
check "a second signal: nothing is saved" [ -z "$(ls -d "$work"/twice/step_* 2>/dev/null)" ]
kill $reader

# Sampling and evaluation alone have nothing to save: a signal ends them as it does by itself.
start --model "$work/good" --prompt line --sample-tokens 50000000
await says '^line'
kill -TERM $child
ended
check "sampling alone, SIGTERM: exit code $status" [ "$status" -eq 143 ]
start --model "$work/good" --train "$work/text.txt" --eval-only --batch 2 --eval-batches 50000000
await says 'largest that fits'
kill -TERM $child
ended
check "evaluation alone, SIGTERM: exit code $status" [ "$status" -eq 143 ]

# It may be done before the signal comes; then the file is whole.
start --model nano --layers 8 --heads 8 --channels 768 --export "$work/large.bin"
await eval 'ls -d "$work"/.tmp-large.bin-* >/dev/null 2>&1 || [ -e "$work/large.bin" ]'
kill -TERM $child 2>/dev/null
ended
check "an export, SIGTERM: exit code $status" eval '[ "$status" -eq 143 ] || [ -e "$work/large.bin" ]'
check "an export, SIGTERM: nothing is left of it" [ -z "$(ls -A "$work" | grep '^\.tmp-')" ]
rm -f "$work/large.bin" "$work/gpt2_tokenizer.bin"

# ---- the output is all that there is ----
"$program" --device cpu $tiny $quiet --steps 3 >/dev/full 2>"$work/err" </dev/null
status=$?
: >"$work/out"
failed_with "a full disk, without --out" 'output could not be written'
"$program" --device cpu $tiny $quiet --steps 3 --out "$work/full" >/dev/full 2>"$work/err" </dev/null
check "a full disk, with --out: the run goes on" [ $? -eq 0 ]

# With a whole line of its output the reader leaves: there is nothing to say, as for other programs that only print.
{ "$program" --device cpu --layers 1 --train "$work/text.txt" --profile 2>"$work/err" </dev/null; echo "status $?" >"$work/out"; } | head -n 1 >"$work/first"
check "a profile for a reader that leaves: it ends by the signal" grep -qx 'status 141' "$work/out"
check "a profile for a reader that leaves: without a word" [ ! -s "$work/err" ]

# ---- what an evaluation may write ----
cp -r "$work/good" "$work/logged"
sums "$work/logged" >"$work/before"
lines=$(wc -l <"$work/logged/log.jsonl")
run --model "$work/logged" --train "$work/text.txt" --eval-only --eval-batches 2 --batch 2 --out "$work/logged"
check "--eval-only --out: exit code $status" [ "$status" -eq 0 ]
sums "$work/logged" >"$work/after"
check "--eval-only --out: the checkpoints stand" cmp -s "$work/before" "$work/after"
check "--eval-only --out: one line more" [ "$(wc -l <"$work/logged/log.jsonl")" -eq $((lines + 1)) ]
{ (ulimit -f 0 && exec "$program" --device cpu --model "$work/logged" --train "$work/text.txt" --eval-only --eval-batches 2 --batch 2 --out "$work/logged") 2>&1 </dev/null; echo "status $?"; } | cat >"$work/out"
check "--eval-only --out, a full disk: exit code 1" grep -qx 'status 1' "$work/out"
check "--eval-only --out, a full disk: the line" grep -qE '^error: --out: .*/log.jsonl: a line could not be written: ' "$work/out"
check "--eval-only --out, a full disk: the loss all the same" grep -q '^step 6 | val loss ' "$work/out"
printf '{"step": 9, "lo' >>"$work/logged/log.jsonl"
run --model "$work/logged" --train "$work/text.txt" --eval-only --eval-batches 2 --batch 2 --out "$work/logged"
check "--eval-only --out: behind half a line, a line of its own" [ "$(wc -l <"$work/logged/log.jsonl")" -eq $((lines + 3)) ]
check "--eval-only --out: it is the loss, and of what" eval 'tail -n 1 "$work/logged/log.jsonl" | grep -qE "^\{\"step\": *6, *\"val_loss\": *[0-9.]+, *\"evaluated\": *\".*/text.txt\"\}$"'
mkdir "$work/foreign" && echo "my notes" >"$work/foreign/log.jsonl"
run --model "$work/logged" --train "$work/text.txt" --eval-only --eval-batches 2 --batch 2 --out "$work/foreign"
run --model "$work/logged" --train "$work/text.txt" --eval-only --eval-batches 2 --batch 2 --out "$work/foreign"
check "--eval-only --out: what is no log is moved, once, and said" eval 'grep -qx "my notes" "$work/foreign/log.1.jsonl" && [ "$(ls "$work/foreign" | grep -c jsonl)" -eq 2 ]'
check "--eval-only --out: two lines" [ "$(wc -l <"$work/foreign/log.jsonl")" -eq 2 ]
cp -r "$work/good" "$work/unlogged"
run --model "$work/unlogged" --train "$work/text.txt" --eval-only --eval-batches 2 --batch 2
check "--eval-only: the folder stays as it is" diff -r "$work/good" "$work/unlogged"

# ---- the device, and hints that can be followed ----
run --memory --layers 1
check "--memory names device and precision" grep -qE '^device +cpu fp32: .*threads?,' "$work/out"
# A program that could use a card, where there is none: of this build's objects, and of a stand-in for the rest.
if ${CC:-cc} -fopenmp -I. -o "$work/no_card" build/train_gpt2.o $(find build/llmc -name '*.o' ! -path '*cuda*') dev/test/stubs/no_card.c -lm -lpthread -ldl 2>"$work/err"; then
    "$work/no_card" $tiny $quiet --steps 1 >"$work/out" 2>"$work/err" </dev/null
    check "no card: the CPU trains, exit code" [ $? -eq 0 ]
    check "no card: is said, once" [ "$(grep -c '^note: no CUDA device or no driver found: the CPU computes; hint: nvidia-smi$' "$work/out")" -eq 1 ]
    "$work/no_card" $tiny $quiet --steps 1 --device cpu >"$work/out" 2>"$work/err" </dev/null
    check "no card: nothing is said to who asks for the CPU" [ "$(grep -c '^note:' "$work/out")" -eq 0 ]
    "$work/no_card" $tiny $quiet --steps 1 --device cuda >"$work/out" 2>"$work/err" </dev/null
    status=$?
    refused "no card, asked for" '^error: --device cuda: no CUDA device or no driver found; hint: nvidia-smi, or --device cpu$'
else
    skipped=$((skipped + 1))
fi
mkdir "$work/huge"
sed -e 's/"n_layer": *[0-9]*/"n_layer": 4096/' -e 's/"n_embd": *[0-9]*/"n_embd": 131072/' -e 's/"n_head": *[0-9]*/"n_head": 1024/' \
    "$work/nan/config.json" >"$work/huge/config.json"
cp "$work/nan/model.safetensors" "$work/huge"
run --model "$work/huge" --tokenizer bytes --prompt a
failed_with "sampling beyond the memory" '^error: .*/huge needs [0-9.]+ GiB, [0-9.]+ GiB are free; not even one token fits$'
run --model "$work/huge" --tokenizer bytes --train "$work/text.txt" --batch 1
failed_with "a loaded model beyond the memory" 'not even one token fits$'
big="--layers 1 --heads 1 --channels 8 --train $work/text.txt --steps 1 --sample-tokens 0"
run $big --batch 1048576 --seq 2047 --tokens-per-step $((1048576 * 2047))
hint=$(sed -n 's/.*hint: --batch \([0-9]*\) fits.*/\1/p' "$work/err")
check "the batch that fits divides the tokens of a step" eval '[ "${hint:-0}" -gt 0 ] && [ $((1048576 % hint)) -eq 0 ]'
run $big --batch 1048573 --seq 2047 --tokens-per-step 0
hint=$(sed -n 's/.*hint: --batch \([0-9]*\) fits.*/\1/p' "$work/err")
check "the batch that fits where a step is one batch: $hint, no divisor of a prime" [ "${hint:-0}" -gt 1 ]

# ---- a small stack ----
if (ulimit -s 256) 2>/dev/null; then
    small_stack() { (ulimit -s 256 && exec "$program" --device cpu "$@") >"$work/out" 2>"$work/err" </dev/null; }
    small_stack $tiny --steps 4 --save-every 2 --keep 1 --eval-batches 2 --sample-tokens 8 --out "$work/stack"
    check "ulimit -s 256: trains, exit code" [ $? -eq 0 ]
    small_stack $tiny --steps 6 --window 5 --dropout 0.1 --eval-batches 2 --sample-tokens 8 --resume --out "$work/stack"
    check "ulimit -s 256: resumes, exit code" [ $? -eq 0 ]
    small_stack --model "$work/stack" --prompt "$(printf '%0100d' 0)" --sample-tokens 100
    check "ulimit -s 256: samples, exit code" [ $? -eq 0 ]
else
    skipped=$((skipped + 1))
fi

finish
