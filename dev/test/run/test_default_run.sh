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
check "what it replaces: said" [ "$(grep '^note' "$work/out")" = "note: this run's model replaces out/default/step_00000003 at its end, or where it is stopped; hint: --out DIR keeps both" ]
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
rm out/default/default_run
run $tiny --steps 1
kept_nothing "a mark that the user took away" "out/default has no default_run, the mark of a run without --out"
check "a mark that the user took away: the model stands" [ "$(here)" = "log.jsonl run.lock step_00000002" ]
rm -rf out && mkdir -p out/default
run $tiny --steps 1
kept_nothing "a folder of the user's" "out/default has no default_run, the mark of a run without --out"
check "a folder of the user's: stays empty" [ -z "$(ls -A out/default)" ]
touch out/default/default_run
run $tiny --steps 2 --out out/default
check "a run with --out begins in the folder: exit code $status" [ "$status" -eq 0 ]
check "a run with --out begins in the folder: it is the user's" [ "$(here)" = "log.jsonl run.lock step_00000002" ]
rm -rf out && echo mine >out
run $tiny --steps 1
kept_nothing "a file in the way" "cannot create the directory out.*"
check "a file in the way: stays" [ "$(cat out)" = mine ]
rm out

# ---- --resume without --out ----
# left NAME: the last run was refused, and out/default is as $before has it.
state() { ls -lA --time-style=full-iso out/default 2>&1; }
left() { check "$1: nothing is touched" [ "$(state)" = "$before" ]; }
before=$(state)
run $tiny --steps 3 --resume
refused "--resume before any run" '^error: --resume without --out: there is no out/default, .*hint: --out DIR'
check "--resume before any run: nothing is made" [ ! -e out ]
run $tiny --resume --memory
refused "--memory of it" '^error: --resume without --out: there is no out/default'
for flags in "" "--gpus 2"; do
    rm -rf out
    start $tiny --steps 100000000 $flags
    await grep -q '^step  *3/' "$work/out"
    kill -INT $child
    ended
    check "ctrl-C${flags:+, $flags}: exit code $status" [ "$status" -eq 0 ]
    check "ctrl-C${flags:+, $flags}: --resume goes on" grep -qE '^stopped by a signal after step [0-9]+; --resume goes on from there$' "$work/out"
    step=$(cd out/default && ls -d step_* | sed 's/step_0*//')
    run $tiny --resume --prompt line --steps $((step + 2)) $flags
    kept $((step + 2))
    check "ctrl-C, --resume${flags:+, $flags}: goes on from there" grep -qE "^resumed +out/default/step_0*$step, step $step$" "$work/out"
    check "ctrl-C, --resume${flags:+, $flags}: one log, each step once" [ "$(here | sed 's/ step_.*//') $(grep -c '"norm"' out/default/log.jsonl)" = "default_run log.jsonl run.lock $((step + 2))" ]
    check "ctrl-C, --resume${flags:+, $flags}: nothing is said to be replaced" [ "$(grep -c '^note: .*replace' "$work/out")" -eq 0 ]
done
run $tiny --resume --steps 2 --gpus 2
check "a finished run, --resume: exit code $status" [ "$status" -eq 0 ]
check "a finished run, --resume: says so" grep -qE '^finished: out/default/step_[0-9]+ has [0-9]+ steps' "$work/out"
run $tiny --resume --memory
check "--memory of --resume: exit code $status" [ "$status" -eq 0 ]
check "--memory of --resume: is of its checkpoint" grep -q '^model  *out/default/step_' "$work/out"
run $tiny --steps 2
kept 2
before=$(state)
for flags in "--model nano" "--train data/default.txt"; do
    run $tiny --steps 3 --resume $flags
    refused "--resume $flags" '^error: --resume needs to know the run to go on with; hint: --out DIR, its folder$'
    left "--resume $flags"
done
run --resume --eval-only
refused "--resume --eval-only" '^error: --eval-only and --resume: '
left "--resume --eval-only"
run $tiny --steps 3 --resume --restarts 2
refused "--resume --restarts" '^error: --restarts: .*hint: --out DIR'
left "--resume --restarts"
run $tiny --steps 3 --resume --out out/default
check "--out out/default --resume: exit code $status" [ "$status" -eq 0 ]
check "--out out/default --resume: that the next one replaces it" grep -qE '^note: the next run without --out replaces what is in out/default; hint: ' "$work/out"
check "--out out/default --resume: stays a folder of runs without --out" [ "$(here)" = "default_run log.1.jsonl log.jsonl run.lock step_00000002 step_00000003" ]
mkdir elsewhere && cp -r out/default elsewhere/mine
run $tiny --steps 4 --resume --out elsewhere/mine
check "a copy: no run without --out replaces it" [ "$status $(grep -c '^note: the next' "$work/out")" = "0 0" ]
run $tiny --steps 1
kept 1
rm out/default/default_run
before=$(state)
for flags in "" "--gpus 2" --memory; do
    run $tiny --steps 3 --resume $flags
    refused "--resume${flags:+ $flags} in a folder of the user's" '^error: --resume without --out: out/default has no default_run, .*hint: --out DIR'
    left "--resume${flags:+ $flags} in a folder of the user's"
done
rm -rf out && mkdir -p out/default && touch out/default/default_run
run $tiny --steps 2 --resume
kept 2
check "--resume in a folder without a checkpoint: a new run begins" grep -q '^resumed  *nothing: out/default holds no checkpoint, a new run begins$' "$work/out"
run $tiny --steps 3 --seed 3
losses() { grep -o '"step": [0-9]*, "loss": [0-9.]*' "$1"; }
losses out/default/log.jsonl >"$work/losses"
start $tiny --steps 100000000 --seed 4
await grep -q '^step  *5/' "$work/out"
kill -KILL $child
ended
run $tiny --steps 4 --seed 3 --resume
kept 4
check "killed before its save, --resume: the log is the checkpoint's" [ "$(losses out/default/log.jsonl | head -n 3)" = "$(cat "$work/losses")" ]
check "killed before its save, --resume: its own log stays" [ "$(losses out/default/log.1.jsonl | wc -l)" -ge 5 ]
# Twice, with seeds of their own; what is refused or has nothing to do moves no log.
rm -r out
run $tiny --steps 3 --seed 3
losses out/default/log.jsonl >"$work/losses"
for seed in 4 5; do
    start $tiny --steps 100000000 --seed $seed
    await grep -q '^step  *5/' "$work/out"
    kill -KILL $child
    ended
done
cat out/default/log.jsonl >"$work/killed"
run $tiny --steps 4 --seed 3 --resume --optimizer adamw
refused "of another optimizer" 'adamw'
run $tiny --steps 3 --seed 3 --resume
check "two killed, a finished run: exit code $status" [ "$status" -eq 0 ]
check "refused, finished: the log stays where it was" cmp -s "$work/killed" out/default/log.jsonl
run $tiny --steps 4 --seed 3 --resume
kept 4
check "two killed, --resume: the log is the checkpoint's" [ "$(losses out/default/log.jsonl | head -n 3)" = "$(cat "$work/losses")" ]
check "two killed, --resume: the last one's log stays" cmp -s "$work/killed" out/default/log.1.jsonl

# ---- two at once, stops, faults ----
rm -rf out
run $tiny --steps 2
start $tiny --steps 100000000
await grep -q '^step  *1/' "$work/out"
"$program" --device cpu $tiny --steps 1 >"$work/out2" 2>&1
check "a second run beside: exit code $?" [ $? -eq 0 ]
check "a second run beside: says so" sh -c "tr '\n' ' ' <'$work/out2' | grep -qE 'note: no model is kept: .*another run is writing there; hint: --out DIR'"
run $tiny --steps 3 --resume
refused "--resume beside a run" 'out/default: another run is writing there'
run $tiny --steps 3 --resume --memory
check "--memory of --resume beside a run: exit code $status" [ "$status" -eq 0 ]
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
        env LD_PRELOAD="$work/faults.so" $fault "$program" --device cpu $tiny --steps 3 --resume >"$work/out" 2>"$work/err" </dev/null
        check "$fault, --resume: exit code $?" [ $? -eq 1 ]
        rm -r out/default/step_*
        env LD_PRELOAD="$work/faults.so" $fault "$program" --device cpu $tiny --steps 3 --resume >"$work/out" 2>"$work/err" </dev/null
        check "$fault, --resume without a checkpoint: exit code $?" [ $? -eq 1 ]
    done
else
    skipped=$((skipped + 1))
fi
finish
