#!/bin/sh
# The run without flags leaves a model in out/default: what the next one replaces, and what none ever touches.
# Usage: dev/test/run/test_default_run.sh [PROGRAM], from the repository root. Ends with 'default_run: N passed, N failed, N skipped'.
set -u
program=$(realpath "${1:-./train_gpt2}")
test=default_run
. dev/test/user.sh
make_text 300
mkdir -p "$work/run/data"
cp "$work/text.txt" "$work/run/data/default.txt"
cd "$work/run" || exit 1
tiny="--layers 1 --heads 2 --channels 32 --batch 2 --seq 16 --warmup 0 --eval-batches 2 --sample-tokens 4"
here() { (cd out/default && echo *); }
# kept STEP: the last run ended well and left the checkpoint of that step alone, and its last line works.
kept() {
    check "step $1: exit code $status" [ "$status" -eq 0 ]
    check "step $1: nothing on stderr" [ ! -s "$work/err" ]
    check "step $1: that checkpoint alone" [ "$(cd out/default && echo step_*)" = "$(printf 'step_%08d' "$1")" ]
    check "step $1: the last line says what to do" [ "$(tail -n 1 "$work/out")" = "to sample from it: $program --model out/default --prompt \"Once\"" ]
    eval "$(sed -n '$s/^to sample from it: //p' "$work/out") --device cpu --sample-tokens 4" >"$work/sample" 2>&1
    check "step $1: its command works" grep -q '^Once' "$work/sample"
}
# kept_nothing NAME WHY: the last run ended well, and a note says why it keeps no model.
kept_nothing() {
    check "$1: exit code $status" [ "$status" -eq 0 ]
    check "$1: said" grep -qE "^note: no model is kept: $2" "$work/out"
    check "$1: the last line is the usual" sh -c "tail -n 1 '$work/out' | grep -q '^done: '"
}
run $tiny --steps 4 --prompt "line"
kept 4
check "a prompt for the first model: nothing is replaced" [ "$(grep -c '^note' "$work/out")" -eq 0 ]
run $tiny --steps 3 --prompt "line"
kept 3
check "a prompt beside a model that is there: said" grep -q '^note: --prompt without --model: .* --model out/default samples' "$work/out"
check "the log of the run before stays" [ "$(grep -c '"norm"' out/default/log.1.jsonl)" -eq 4 ]
run $tiny --steps 3 --gpus 2
kept 3
check "one log of a run before" [ "$(here)" = "default_run log.1.jsonl log.jsonl run.lock step_00000003" ]

# ---- runs that are none of it ----
for flags in "--train data/default.txt" "--model nano" "--overfit"; do
    rm -rf out
    run $tiny --steps 1 $flags
    check "$flags: exit code $status" [ "$status" -eq 0 ]
    check "$flags: nothing is written" [ ! -e out ]
done
run $tiny --memory
check "--memory: nothing is written" [ ! -e out ]

# ---- a folder of the user's ----
run $tiny --steps 2
echo mine >out/default/step_00000002/notes.txt
run $tiny --steps 1
check "files of the user's in a checkpoint: it stays" [ -s out/default/step_00000002/notes.txt ]
rm -rf out
run $tiny --steps 2
run $tiny --steps 3 --resume --out out/default
check "gone on with: exit code $status" [ "$status" -eq 0 ]
run $tiny --steps 1
kept_nothing "a run that was gone on with" "out/default was not made by a run without --out"
check "a run that was gone on with: stands" [ "$(here)" = "log.jsonl run.lock step_00000002 step_00000003" ]
rm -rf out && mkdir -p out/default
run $tiny --steps 1
kept_nothing "a folder of the user's" "out/default was not made by a run without --out"
check "a folder of the user's: stays empty" [ -z "$(ls -A out/default)" ]
rm -rf out && echo mine >out
run $tiny --steps 1
kept_nothing "a file in the way" "cannot create the directory out.*"
check "a file in the way: stays" [ "$(cat out)" = mine ]
rm out

# ---- two at once, stops, faults ----
run $tiny --steps 2
start $tiny --steps 100000000
await grep -q '^step  *1/' "$work/out"
"$program" --device cpu $tiny --steps 1 >"$work/out2" 2>&1
check "a second run beside: exit code $?" [ $? -eq 0 ]
check "a second run beside: says so" sh -c "tr '\n' ' ' <'$work/out2' | grep -qE 'note: no model is kept: .*another run is writing there'"
check "before the first save: the model of the run before stands" [ -s out/default/step_00000002/model.safetensors ]
kill -KILL $child
ended
check "killed before the first save: the model of the run before stands" [ -s out/default/step_00000002/model.safetensors ]
start $tiny --steps 100000000
await grep -q '^step  *3/' "$work/out"
kill -INT $child
ended
check "ctrl-C: exit code $status" [ "$status" -eq 0 ]
check "ctrl-C: its model takes the place" eval '[ "$(ls -d out/default/step_* | wc -l)" -eq 1 ] && [ ! -e out/default/step_00000002 ]'
if [ "$(id -u)" -ne 0 ]; then
    rm -rf out && chmod 555 .
    run $tiny --steps 1
    kept_nothing "a folder that cannot be written" "cannot create the directory out.*Permission denied"
    chmod 755 .
else
    skipped=$((skipped + 1))
fi
cd "$OLDPWD" || exit 1
if ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$work/faults.so" dev/test/disk_faults.c 2>"$work/err"; then
    cd "$work/run" || exit 1
    for fault in ROOM=1000 FULL=model.safetensors:9; do
        rm -rf out
        run $tiny --steps 2
        env LD_PRELOAD="$work/faults.so" $fault "$program" --device cpu $tiny --steps 1 >"$work/out" 2>"$work/err" </dev/null
        status=$?
        check "$fault: exit code $status" [ "$status" -eq 0 ]
        check "$fault: said" grep -qE 'no model is kept: .*MiB are free|^warning: checkpoint of step 1 not saved: .*No space left' "$work/out" "$work/err"
        check "$fault: the model of the run before stands" [ -s out/default/step_00000002/model.safetensors ]
    done
else
    skipped=$((skipped + 1))
fi
finish
