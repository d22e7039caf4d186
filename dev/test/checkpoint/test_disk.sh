#!/bin/sh
# The program and the disk, as a user meets them: what lies outside a run's folder, links, leftovers, a full disk, file
# systems without fsync or locks, folders that vanish. Every run is tiny and on the CPU.
# Usage: dev/test/checkpoint/test_disk.sh [PROGRAM], from the repository root. Ends with 'disk: N passed, N failed, N skipped'.
set -u
program=${1:-./train_gpt2}
test=disk
. dev/test/user.sh

refuses() {
    what_is_refused=$1 why=$2
    shift 2
    run "$@"
    refused "$what_is_refused" "$why"
}
# Everything in a folder: names, kinds, where links point, checksums of files.
listing() { (cd "$1" && find . ! -type f -printf '%p %y %l\n' && find . -type f -exec cksum {} +) | sort; }
# A folder that no run may change, though a link leads there: checked by outside_stands NAME.
make_outside() {
    rm -rf "$work/outside" && mkdir -p "$work/outside/sub"
    echo weeks >"$work/outside/model.safetensors"
    echo of >"$work/outside/config.json"
    echo computing >"$work/outside/sub/notes.txt"
}
make_outside
listing "$work/outside" >"$work/outside.before"
outside_stands() {
    listing "$work/outside" >"$work/outside.now"
    check "$1: the folder that a link leads to is as it was" cmp -s "$work/outside.before" "$work/outside.now"
    make_outside
}
make_text 200
tiny="--model nano --layers 2 --heads 2 --channels 32 --batch 2 --seq 16 --warmup 2 --eval-batches 2 --sample-tokens 0 --seed 7 --schedule constant"
training="$tiny --train $work/text.txt --eval-every 0"
run $training --steps 12 --save-every 4 --out "$work/made"
check "a run: exit code $status" [ "$status" -eq 0 ]
# fresh: $out is a copy of that run: checkpoints of steps 4, 8 and 12.
out=$work/run
fresh() {
    rm -rf "$out"
    cp -R "$work/made" "$out"
}

# ---- readers change nothing ----
# unchanged NAME ARGS...: the run with these arguments ends well and leaves $out and the folder outside as they are.
unchanged() {
    what_reads=$1
    shift
    listing "$out" >"$work/before"
    run "$@"
    check "$what_reads: exit code $status" [ "$status" -eq 0 ]
    listing "$out" >"$work/after"
    check "$what_reads: changes nothing" cmp -s "$work/before" "$work/after"
    outside_stands "$what_reads"
}
fresh
rm "$out/run.lock"
ln -s ../outside "$out/.old-step_00000008-99999"
ln -s ../outside "$out/.old-step_00000009-99999"
ln -s ../outside "$out/.tmp-step_00000003-99999"
mkdir "$out/.tmp-step_00000005-99999"
unchanged "sampling" --model "$out" --prompt hi --sample-tokens 4
unchanged "--eval-only" --model "$out" --eval-only --train "$work/text.txt" --batch 2 --eval-batches 2
unchanged "--memory" --model "$out" --memory
unchanged "--memory of a run to be resumed" $training --memory --resume --out "$out"
mv "$out/step_00000012" "$out/.old-step_00000012-99999"
unchanged "sampling from what a kill left aside" --model "$out" --prompt hi --sample-tokens 4
check "sampling from what a kill left aside: takes the newest" grep -q 'old-step_00000012-99999' "$work/err"

# ---- leftovers and links in a run's folder ----
mkdir "$out/.tmp-step_00000006-$$"
echo >"$out/.tmp-step_00000006-$$/config.json"
run $training --steps 14 --save-every 4 --keep 9 --resume --out "$out"
check "resume of what a kill left: exit code $status" [ "$status" -eq 0 ]
check "resume of what a kill left: goes on from it" grep -qE '^resumed .*step 12$' "$work/out"
check "resume of what a kill left: it is back in its place" [ -e "$out/step_00000012/config.json" ]
check "resume: a link to anything is no checkpoint" [ ! -h "$out/step_00000009" ]
check "resume: leftovers go, links as links, also of a number that lives" [ -z "$(ls -A "$out" | grep '^\.')" ]
outside_stands "resume"

fresh
cp -R "$out/step_00000004" "$work/moved"
rm -r "$out/step_00000004"
ln -s ../moved "$out/step_00000004"
listing "$work/moved" >"$work/moved.before"
run --model "$out/step_00000004" --prompt hi --sample-tokens 4
check "a checkpoint moved away, a link in its place: exit code $status" [ "$status" -eq 0 ]
run $training --steps 14 --save-every 4 --keep 2 --resume --out "$out"
check "--keep and a checkpoint moved away: exit code $status" [ "$status" -eq 0 ]
listing "$work/moved" >"$work/moved.now"
check "--keep and a checkpoint moved away: it is whole" cmp -s "$work/moved.before" "$work/moved.now"
check "--keep and a checkpoint moved away: the link is gone" [ ! -h "$out/step_00000004" ]
check "--keep and a checkpoint moved away: the newest stay" [ "$(ls -d "$out"/step_* | wc -l)" -eq 2 ]
rm -r "$out" && fresh
mv "$out/step_00000012" "$work/moved12" && ln -s ../moved12 "$out/step_00000012"
run $training --steps 14 --resume --out "$out"
check "resume from a checkpoint behind a link" grep -qE '^resumed .*step 12$' "$work/out"

fresh
echo mine >"$out/step_00000004/notes.txt"
mkdir -p "$out/.tmp-step_00000003-1/sub" && echo mine >"$out/.tmp-step_00000003-1/sub/notes.txt"
rm -r "$out/step_00000008" && echo mine >"$out/step_00000008"
run $training --steps 16 --keep 1 --save-every 2 --resume --out "$out"
check "files of others: exit code $status" [ "$status" -eq 0 ]
check "files of others in a checkpoint: it stays" eval '[ -s "$out/step_00000004/notes.txt" ] && [ -s "$out/step_00000004/model.safetensors" ]'
check "files of others in a checkpoint: named, once" [ "$(grep -cE '^warning: --out .*step_00000004 stays: it holds notes.txt' "$work/err")" -eq 1 ]
check "files of others in a leftover: they stay" [ -s "$out/.tmp-step_00000003-1/sub/notes.txt" ]
check "files of others in a leftover: named" grep -qE '^warning: --out .*\.tmp-step_00000003-1 stays: it holds sub' "$work/err"
check "a file with a checkpoint's name stays" [ "$(cat "$out/step_00000008")" = mine ]
check "files of others: what is ours goes" [ ! -e "$out/step_00000012" ]

# ---- the log and the lock are never links ----
for linked in log.jsonl log.jsonl.tmp run.lock; do
    fresh
    rm -f "$out/$linked"
    ln -s ../outside/model.safetensors "$out/$linked"
    refuses "$linked is a link, resumed" "^error: --out: .*/$linked: expected a file, found a symbolic link, .*; hint: " $training --steps 14 --resume --out "$out"
    check "$linked is a link, resumed: found before anything is printed" [ ! -s "$work/out" ]
    outside_stands "$linked is a link, resumed"
    check "$linked is a link, resumed: the link stays" [ -h "$out/$linked" ]
    [ $linked = log.jsonl.tmp ] && continue
    rm -rf "$out"/step_*
    refuses "$linked is a link" "^error: --out: .*/$linked: expected a file, found a symbolic link, .*; hint: " $training --steps 2 --out "$out"
    check "$linked is a link: found before anything is printed" [ ! -s "$work/out" ]
    outside_stands "$linked is a link"
    rm "$out/$linked" && mkfifo "$out/$linked"
    refuses "$linked is a FIFO" "^error: --out: .*/$linked: expected a file, found a FIFO, .*; hint: " $training --steps 2 --out "$out"
    check "$linked is a FIFO: found before anything is printed" [ ! -s "$work/out" ]
done
mkdir "$work/foldered" && mkdir "$work/foldered/log.jsonl"
refuses "log.jsonl is a folder" '^error: --out: .*/log.jsonl: expected a file, found a directory, ' $training --steps 2 --out "$work/foldered"
fresh
echo left >"$out/log.jsonl.tmp"
ln "$out/log.jsonl" "$work/hard_link"
cp "$out/log.jsonl" "$work/log.before"
run $training --steps 14 --resume --out "$out"
check "a log with a leftover beside it: exit code $status" [ "$status" -eq 0 ]
check "a log with a second name: that is as it was" cmp -s "$work/hard_link" "$work/log.before"
check "a log with a leftover beside it: goes on" [ "$(grep -c '"norm"' "$out/log.jsonl")" -eq 14 ]

# ---- what --out may be ----
mkdir "$work/elsewhere" && ln -s elsewhere "$work/link"
run $training --steps 2 --out "$work/link"
check "--out is a link to a folder: exit code $status" [ "$status" -eq 0 ]
check "--out is a link to a folder: written there" [ -s "$work/elsewhere/step_00000002/model.safetensors" ]
fresh
refuses "--out is a checkpoint" '--out .*/step_00000012: is a checkpoint itself.*hint: --resume --out .*/step_00000012/\.\. goes on' $training --steps 2 --out "$out/step_00000012"
refuses "--out is a checkpoint, resumed" 'is a checkpoint itself' $training --steps 14 --resume --out "$out/step_00000012"
cp -R "$out/step_00000012" "$work/exported" && rm "$work/exported/trainer_state.json"
refuses "--out is a model" '--out .*/exported: is a model itself .*hint: another --out' $training --steps 2 --out "$work/exported"
mv "$work/exported/model.safetensors" "$work/exported/model-00001-of-00001.safetensors"
refuses "--out is a model in several files" 'is a model itself' $training --steps 2 --out "$work/exported"
check "--out is a model: nothing is written there" eval '[ ! -e "$work/exported/log.jsonl" ] && [ ! -e "$work/exported/run.lock" ]'
mkdir "$work/aside" && cp -R "$out/step_00000012" "$work/aside/.old-step_00000012-1"
refuses "a new run beside what a kill left aside" 'holds checkpoints of another run .\.old-step_00000012-1' $training --steps 2 --out "$work/aside"
ln -s nothing "$work/dangling"
refuses "--out is a link to nothing" '^error: --out .*/dangling: expected a folder, found a symbolic link to nothing; hint: ' $training --steps 2 --out "$work/dangling"
check "--out is a link to nothing: found before anything is printed" [ ! -s "$work/out" ]
check "--out is a checkpoint: nothing is made" eval '[ ! -e "$out/step_00000012/run.lock" ] && [ ! -e "$work/exported/run.lock" ]'

# ---- checkpoints that cannot be gone on with, and what has only their names ----
fresh
printf X | dd of="$out/step_00000012/model.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null
run $training --steps 13 --resume --out "$out"
check "the newest is damaged: exit code $status" [ "$status" -eq 0 ]
check "the newest is damaged: one warning" [ "$(cat "$work/err" | wc -l)" -eq 1 ]
check "the newest is damaged: which, and why" grep -qE '^warning: checkpoint skipped: .*/step_00000012/model.safetensors: tensor .*: damaged' "$work/err"
check "the newest is damaged: it stays, and a note says where" eval '[ -s "$out/step_00000012.damaged.1/model.safetensors" ] && grep -qE "^note: .*/step_00000012 was not a whole checkpoint of that step: what it had is kept as step_00000012.damaged.1$" "$work/out"'
run --model "$out/step_00000012" --prompt a --sample-tokens 1
check "the newest is damaged: another in its place, that is whole: exit code $status" [ "$status" -eq 0 ]
fresh
rm "$out/step_00000012/trainer_state.json" && cp -R "$out/step_00000012" "$work/edited" && cp -R "$work/edited" "$out/step_00000012.damaged.1"
run $training --steps 13 --resume --out "$out"
check "an edited checkpoint: it stays as it was, under the next name" diff -r "$work/edited" "$out/step_00000012.damaged.2"
printf X | dd of="$out/step_00000013/optimizer.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null
run $training --steps 13 --resume --out "$out"
check "a damaged optimizer: its weights stay" [ -s "$out/step_00000013.damaged.1/model.safetensors" ]
run $training --steps 16 --keep 1 --resume --out "$out"
check "an edited checkpoint: --keep lets it be" eval '[ -d "$out/step_00000012.damaged.1" ] && [ -d "$out/step_00000012.damaged.2" ]'
# The run's folder is another file while it trains.
$program $training --steps 100000 --save-every 4 --out "$work/ours" >"$work/out" 2>"$work/err" &
trainer=$!
until ls "$work/ours"/step_* >/dev/null 2>&1; do sleep 0.05; done
kill -STOP $trainer # else its next save may come between the two
mv "$work/ours" "$work/ours_before" && echo mine >"$work/ours"
kill -CONT $trainer
until [ -s "$work/err" ]; do sleep 0.05; done
kill -TERM $trainer; wait $trainer
status=$?
check "a file where the run's folder was: exit code $status" [ "$status" -eq 1 ]
check "a file where the run's folder was: says so" grep -qE '^error: --out .*/ours: the folder that the run began in is gone, and cannot create the directory .*/ours: Not a directory$' "$work/err"
check "a file where the run's folder was: it stays" [ "$(cat "$work/ours")" = mine ]
mkdir "$work/locked" && echo precious >"$work/precious" && ln "$work/precious" "$work/locked/run.lock"
for mode in '' --resume; do refuses "a user's file named run.lock${mode:+, $mode}" '^error: --out: .*/locked/run.lock: expected the lock of a run, found a file of 9 bytes that no run wrote; hint: ' $training --steps 2 $mode --out "$work/locked"; done
check "a user's file named run.lock: it stays" [ "$(cat "$work/precious")" = precious ]
rm "$work/locked/run.lock" && echo '{"my": "data"}' >"$work/locked/log.jsonl"
run $training --steps 2 --out "$work/locked"
check "a user's log.jsonl: kept, with a note" eval 'grep -q "^note: .*/log.jsonl has lines that are no log.s: kept as .*/log.1.jsonl$" "$work/out" && grep -q my "$work/locked/log.1.jsonl"'
fresh
for saved in "$out"/step_*; do printf X | dd of="$saved/model.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null; done
refuses "all are damaged" '^error: --resume: .*expected a whole checkpoint, found 3 that cannot be used, the newest: .*/step_00000012/model.safetensors: tensor .*: damaged or edited.*; hint: another --out begins a new run$' $training --steps 14 --resume --out "$out"
refuses "all are damaged, a model" '^error: --model: .*found 3 that cannot be used, the newest: .*/step_00000012/model.safetensors: .*; hint: without its trainer_state.json --model .*/step_00000012 loads it as it is$' --model "$out" --prompt a
refuses "a damaged model" '^error: --model: .*/step_00000012/model.safetensors: tensor .*; hint: without its trainer_state.json --model .*/step_00000012 loads' --model "$out/step_00000012" --prompt a
rm "$out/step_00000012/trainer_state.json"
run --model "$out/step_00000012" --prompt a --sample-tokens 4
check "a damaged model: the hint helps, exit code $status" [ "$status" -eq 0 ]
mkdir -p "$work/foreign/step_00000005/mine"
refuses "a folder with a checkpoint's name" '^error: --out .*/foreign: holds step_00000005, named as a run.s checkpoint, but cannot open .*/trainer_state.json: .*; hint: move it away, or another --out$' $training --steps 2 --out "$work/foreign"
refuses "a folder with a checkpoint's name, resumed" '^error: --resume: .*found 1 that cannot be used, the newest: cannot open .*/step_00000005/trainer_state.json: .*; hint: another --out' $training --steps 2 --resume --out "$work/foreign"
mv "$work/foreign/step_00000005" "$work/foreign/step_of_mine"
run $training --steps 2 --out "$work/foreign"
check "a folder whose name only begins as a checkpoint's: exit code $status" [ "$status" -eq 0 ]
check "a folder whose name only begins as a checkpoint's: it stays" [ -d "$work/foreign/step_of_mine/mine" ]
run $training --steps 2 --out "$work/renamed"
mv "$work/renamed/step_00000002" "$work/renamed/step_00000003"
refuses "a checkpoint by another's name" '^error: --resume: .*found 1 that cannot be used, the newest: .*/step_00000003: is step_00000002 by its trainer_state.json; hint: rename it; hint: another --out' $training --steps 4 --resume --out "$work/renamed"
refuses "a new run beside a checkpoint by another's name" '^error: --out .*/renamed: holds step_00000003, .*: is step_00000002 by its trainer_state.json; hint: rename it; hint: move it away' $training --steps 4 --out "$work/renamed"
refuses "a model by another's name" '^error: --model: .*/step_00000003: is step_00000002 by its trainer_state.json; hint: rename it$' --model "$work/renamed" --prompt a
run --model "$work/renamed/step_00000003" --prompt a --sample-tokens 4
check "a checkpoint by another's name: itself it can be sampled from, exit code $status" [ "$status" -eq 0 ]
mv "$work/renamed/step_00000003" "$work/renamed/step_00000002"
run $training --steps 4 --resume --out "$work/renamed"
check "a checkpoint by another's name: with its own it is resumed, exit code $status" [ "$status" -eq 0 ]
run $training --steps 2 --model-only --out "$work/weights"
refuses "a new run beside weights alone" '^error: --out .*/weights: holds step_00000002, .* holds weights only, .*cannot be resumed; hint: move it away, or another --out$' $training --steps 4 --out "$work/weights"

# ---- a folder that vanishes ----
# stop: until kill -CONT the run writes nothing: a file that it makes in a folder that goes keeps that there.
stop() {
    kill -STOP $child
    until is_stopped $child; do sleep 0.01; done
}
for how in moved removed; do
    start $training --steps 100000000 --out "$work/vanishing"
    await has_steps 3 "$work/vanishing/log.jsonl"
    stop
    if [ $how = moved ]; then mv "$work/vanishing" "$work/vanished"; else rm -r "$work/vanishing"; fi
    kill -CONT $child
    kill -TERM $child
    ended
    check "--out is $how: exit code $status" [ "$status" -eq 0 ]
    check "--out is $how: said" grep -qE '^warning: --out .*/vanishing: the folder is gone' "$work/err"
    check "--out is $how: the log goes on there" [ -e "$work/vanishing/log.jsonl" ]
    check "--out is $how: what was learned is saved" [ -n "$(ls -d "$work"/vanishing/step_*)" ]
    rm -rf "$work/vanishing"
done
# To another disk, with a link in its place: the run's own checkpoints are not taken for another run's.
start $training --steps 100000000 --out "$work/moving"
await has_steps 3 "$work/moving/log.jsonl"
kill -USR1 $child
await grep -q '^saved step .* on request' "$work/out"
cp -R "$work/moving" "$work/other_disk"
stop
rm -r "$work/moving" && ln -s other_disk "$work/moving"
kill -CONT $child
kill -TERM $child
ended
check "--out is copied to another disk: exit code $status" [ "$status" -eq 0 ]
check "--out is copied to another disk: said" grep -qE '^warning: --out .*/moving: the folder is another one .* with this run.s files; the run goes on there' "$work/err"
check "--out is copied to another disk: saved there" [ "$(ls -d "$work"/other_disk/step_* | wc -l)" -eq 2 ]
last=$(sed -n 's/^stopped by a signal after step \([0-9]*\).*/\1/p' "$work/out")
check "--out is copied to another disk: its log has all $last steps" [ "$(grep -c '"norm"' "$work/other_disk/log.jsonl")" = "$last" ]
# Another run's folder takes the place.
start $training --steps 100000000 --out "$work/taken"
await has_steps 3 "$work/taken/log.jsonl"
stop
mv "$work/taken" "$work/taken_away" && cp -R "$work/made" "$work/taken"
listing "$work/taken" >"$work/before"
kill -CONT $child
kill -TERM $child
ended
check "--out is another run's now: exit code $status" [ "$status" -eq 1 ]
check "--out is another run's now: said" grep -qE '^error: --out .*/taken: the folder that the run began in is gone .* holds other checkpoints .step_00000012.$' "$work/err"
check "--out is another run's now: no word of going on from there" grep -qE '^stopped by a signal after step [0-9]+$' "$work/out"
listing "$work/taken" >"$work/after"
check "--out is another run's now: nothing is written there" cmp -s "$work/before" "$work/after"

# ---- the best stays ----
i=0
while [ $i -lt 100 ]; do echo "0123456789 9876543210"; i=$((i + 1)); done >"$work/other.txt"
best="$tiny --train $work/text.txt --val $work/other.txt --eval-every 2 --save-every 3"
run $best --steps 12 --keep 1 --keep-best --lr 1e-2 --out "$work/best"
check "--keep-best: exit code $status" [ "$status" -eq 0 ]
# The step of the lowest validation loss by the log.
lowest() { sed -n 's/.*"step": *\([0-9]*\), *"val_loss": *\([0-9.]*\).*/\2 \1/p' "$1" | sort -n | head -n 1 | cut -d ' ' -f 2; }
first=$(lowest "$work/best/log.jsonl")
check "--keep-best: the lowest loss (step $first) is not the last" [ "$first" -lt 12 ]
check "--keep-best: that and the newest stay" [ "$(cd "$work/best" && echo step_*)" = "$(printf 'step_%08d step_00000012' "$first")" ]
check "--keep-best: the checkpoint knows its loss" grep -q "\"val_loss\": $(sed -n "s/.*\"step\": $first, \"val_loss\": \([0-9.]*\).*/\1/p" "$work/best/log.jsonl")" "$work/best/step_$(printf %08d "$first")/trainer_state.json"
check "--keep-best: the output's row says when it saves" grep -q '^output .* at the end, and at each new lowest validation loss$' "$work/out"
run --model "$work/best" --prompt a --sample-tokens 2
check "--keep-best: whoever samples the newest is told of the best" grep -qE "^note: .* validation loss [0-9.]+; hint: --model $work/best/step_$(printf %08d "$first")$" "$work/err"
run --model "$work/best/step_00000012" --prompt a --sample-tokens 2
check "--keep-best: who names a checkpoint is not" [ "$status$(grep -c ^note: "$work/err")" = 00 ]
run $best --steps 18 --keep 1 --keep-best --lr 1e-2 --resume --out "$work/best"
check "--keep-best, resumed: exit code $status" [ "$status" -eq 0 ]
run $tiny --train "$work/text.txt" --eval-every 2 --keep 1 --keep-best --save-every 0 --steps 3 --out "$work/alone"
check "--keep beside --keep-best, no --save-every: exit code $status" [ "$status" -eq 0 ]
check "--keep-best, resumed: that and the newest stay" [ "$(cd "$work/best" && echo step_*)" = "$(printf 'step_%08d step_00000018' "$first")" ]
run $tiny --train "$work/text.txt" --eval-every 2 --save-every 100 --keep-best --steps 7 --out "$work/falling"
run --model "$work/falling" --prompt a --sample-tokens 2
check "--keep-best with a falling loss: the newest is the best" [ "$status$(grep -c ^note: "$work/err")" = 00 ]
check "--keep-best with a falling loss: at most one beside the last" [ "$(ls -d "$work"/falling/step_* | wc -l)" -le 2 ]
refuses "--keep-best without --out" '--keep-best: there is no folder to save in; hint: --out DIR' $training --keep-best --steps 2

# ---- faults of the disk, brought about from within ----
faults=$work/disk_faults.so
if ! ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$faults" dev/test/disk_faults.c 2>"$work/err"; then
    echo "skip: ${CC:-cc} builds no shared object"
    skipped=$((skipped + 1))
    finish
    exit
fi
# faulty VARIABLE=VALUE ARGS...
faulty() {
    fault=$1
    shift
    env LD_PRELOAD="$faults" "$fault" "$program" --device cpu "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
}
faulty NO_DIRECTORY_SYNC=1 $training --steps 4 --save-every 2 --out "$work/no_sync"
check "no fsync of directories: exit code $status" [ "$status" -eq 0 ]
check "no fsync of directories: saved" [ -s "$work/no_sync/step_00000004/trainer_state.json" ]
fresh
mkdir "$out/.tmp-step_00000003-1"
faulty NO_LISTING=1 $training --steps 14 --resume --out "$out"
check "a folder that cannot be listed: exit code $status" [ "$status" -eq 1 ]
check "a folder that cannot be listed is no empty one" grep -q "^error: .*cannot read the directory $out: Input/output error$" "$work/err"
faulty NO_LOCKS=1 $training --steps 14 --resume --out "$out"
check "no locks: exit code $status" [ "$status" -eq 0 ]
check "no locks: said" grep -qE '^warning: --out .*has no locks' "$work/err"
check "no locks: leftovers, which may be another run's, stay" [ -e "$out/.tmp-step_00000003-1" ]

faulty ROOM=100000 $training --steps 2 --out "$work/no_room"
check "no room at the start: exit code $status" [ "$status" -eq 1 ]
check "no room at the start: one line" [ "$(wc -l <"$work/err")" -eq 1 ]
check "no room at the start: says what is needed and what is there" grep -qE '^error: --out .*/no_room: a checkpoint takes [0-9.]+ MiB, 0\.1 MiB are free' "$work/err"
check "no room at the start: no folder is made" [ ! -e "$work/no_room" ]
faulty ROOM=100000 $training --steps 2 --out "$work/no_parent/no_room/"
check "no room at the start, below a new folder: says so" grep -q 'a checkpoint takes' "$work/err"
check "no room at the start: none above it either" [ ! -e "$work/no_parent" ]
fresh
faulty ROOM=100000 $training --steps 16 --save-every 2 --keep 3 --resume --out "$out"
check "no room later: exit code $status" [ "$status" -eq 1 ]
check "no room later: one goes before, the newest stay" [ "$(cd "$out" && echo step_*)" = "step_00000008 step_00000012" ]
fresh
faulty ROOM=100000 $training --steps 16 --save-every 2 --keep 1 --resume --out "$out"
check "no room, --keep 1: the only good one stays" [ -s "$out/step_00000012/model.safetensors" ]
# A quota: the disk says that it has room.
fresh
faulty FULL=optimizer.safetensors:1 $training --steps 14 --save-every 14 --keep 3 --resume --out "$out"
check "a quota: exit code $status" [ "$status" -eq 0 ]
check "a quota: one goes before, the newest stay" [ "$(cd "$out" && echo step_*)" = "step_00000008 step_00000012 step_00000014" ]
check "a quota: not a word" [ ! -s "$work/err" ]
fresh
faulty FULL=optimizer.safetensors:9 $training --steps 14 --save-every 14 --keep 2 --resume --out "$out"
check "a quota that is too small: exit code $status" [ "$status" -eq 1 ]
check "a quota that is too small: the newest stays" [ "$(cd "$out" && echo step_*)" = "step_00000012" ]

# logged FOLDER: the checkpoints that its log names, in order of their steps.
logged() { sed -n 's/.*"checkpoint": *"\(step_[0-9]*\)".*/\1/p' "$1/log.jsonl" | sort | xargs; }
# fails_twice NAME FOLDER ARGS...: a run whose first two saves fail; each is tried again before the next one is due. Where the
# thread that saves had no core meanwhile, the run says nothing of that: another, up to five.
fails_twice() {
    what=$1 folder=$2
    shift 2
    for try in 1 2 3 4 5; do
        rm -rf "$folder"
        faulty FULL=optimizer.safetensors:2 $training "$@" --steps 600 --save-every 200 --out "$folder"
        [ "$(ls -d "$folder"/step_* | wc -l)" -lt 3 ] || break
    done
    set -- "$what" "$folder"
    check "$1: exit code $status" [ "$status" -eq 0 ]
    check "$1: on stderr" [ "$(grep -cE '^warning: checkpoint of step [0-9]+ not saved: .*No space left' "$work/err")" -eq 2 ]
    check "$1: in the log" [ "$(grep -cE '^\{"step": [0-9]+, "save_failed": "checkpoint of step .*No space left.*"\}$' "$2/log.jsonl")" -eq 2 ]
    check "$1: nothing else is on stderr" [ "$(wc -l <"$work/err")" -eq 2 ]
    check "$1: said when they go well again" [ "$(grep -c '^step [0-9]* is saved; the saves before it had failed$' "$work/out")" -eq 1 ]
    check "$1: tried again before the next is due" [ "$(ls -d "$2"/step_* | wc -l)" -ge 3 ]
    check "$1: the log names what is there" [ "$(logged "$2")" = "$(cd "$2" && echo step_*)" ]
}
fails_twice "a save that fails" "$work/full"
fails_twice "a save that fails, two ranks" "$work/full2" --gpus 2
faulty FULL=optimizer.safetensors:99 $training --steps 12 --save-every 4 --out "$work/fuller"
check "the last save fails: exit code $status" [ "$status" -eq 1 ]
check "the last save fails: said last" [ "$(tail -n 1 "$work/err" | grep -c '^error: checkpoint of step 12 not saved')" -eq 1 ]
check "the last save fails: said once" [ "$(grep -c 'checkpoint of step 12 not saved' "$work/err")" -eq 1 ]
check "the last save fails: once in the log" [ "$(grep -c '"step": 12, "save_failed"' "$work/fuller/log.jsonl")" -eq 1 ]
check "saves that fail leave nothing" [ -z "$(ls -A "$work/fuller" | grep step_)" ]
faulty FULL=optimizer.safetensors:99 $training --gpus 2 --steps 12 --save-every 4 --out "$work/ranks"
check "saves that fail, two ranks: exit code $status" [ "$status" -eq 1 ]
check "saves that fail, two ranks: rank 0 alone says so" [ "$(grep -cvE '^(warning|error): checkpoint of step [0-9]+ not saved' "$work/err")" -eq 0 ]
faulty FULL=optimizer.safetensors:1 $training --steps 4 --out "$work/late"
check "only the save at the end, failing: exit code $status" [ "$status" -eq 1 ]
# The lowest loss is that of step 5, whose save fails late: the next lowest is the best of what is there.
SLOW=10
export SLOW
for ranks in 1 2; do
    what="--keep-best, the save of the best fails, $ranks rank(s)" out=$work/failing$ranks
    faulty FULL=optimizer.safetensors:1 $tiny --gpus $ranks --train "$work/text.txt" --val "$work/other.txt" --eval-every 5 --save-every 0 --keep-best --lr 1e-2 --steps 12 --out "$out"
    check "$what: exit code $status" [ "$status" -eq 0 ]
    check "$what: the lowest loss is its" [ "$(lowest "$out/log.jsonl")" = 5 ]
    check "$what: said" grep -q '^warning: checkpoint of step 5 not saved: .*No space left' "$work/err"
    check "$what: the next lowest stays" grep -q '"best_only": true' "$out/step_00000010/trainer_state.json"
done
unset SLOW
out=$work/run

# ---- a disk that cannot be read in one place ----
# unreadable NAME ARGS...: whichever read fails, the loss is that of a whole model, or one line says so.
unreadable() {
    what_reads=$1 n=0
    shift
    run "$@"
    check "$what_reads: exit code $status" [ "$status" -eq 0 ]
    loss=$(sed -n 's/.*val loss //p' "$work/out")
    while :; do
        n=$((n + 1))
        rm -f "$work/struck"
        faulty "BROKEN=$n:$work/struck" "$@"
        [ -e "$work/struck" ] || break
        if [ "$status" -eq 0 ]; then # a look at what is read again
            check "$what_reads, read $n fails: the loss" grep -q "val loss $loss\$" "$work/out"
        else
            check "$what_reads, read $n fails: says so" grep -q '^error: .*: Input/output error' "$work/err"
            check "$what_reads, read $n fails: one line" [ "$(wc -l <"$work/err")" -eq 1 ]
        fi
    done
    check "$what_reads: $n reads, expected more than 20" [ "$n" -gt 20 ]
}
run ${tiny%--layers 2*} --layers 1 ${tiny#*--layers 2} --train "$work/text.txt" --eval-every 0 --steps 2 --out "$work/read"
evaluation="--eval-only --val $work/text.txt --batch 2 --seq 16 --eval-batches 1 --tokenizer bytes"
run --model "$work/read" --export "$work/read.bin"
check "a model to read: exit code $status" [ "$status" -eq 0 ]
unreadable "a checkpoint" --model "$work/read" $evaluation
unreadable "a model of llm.c" --model "$work/read.bin" $evaluation

# ---- a slow disk: training goes on while a checkpoint is written ----
# No file is written to its end before step 4 is done, and the next save waits for that.
: >"$work/hold"
SLOW=20 HOLD=$work/hold LD_PRELOAD=$faults "$program" --device cpu $training --steps 12 --save-every 2 --out "$work/slow" >"$work/out" 2>"$work/err" </dev/null &
child=$!
await has_steps 4 "$work/slow/log.jsonl"
sleep 0.2
rm "$work/hold"
ended
check "a slow disk: exit code $status" [ "$status" -eq 0 ]
check "a slow disk: step 3 comes before the checkpoint of step 2" [ "$(grep -nE '"step": 3, "loss"' "$work/slow/log.jsonl" | cut -d : -f 1)" -lt "$(grep -n '"checkpoint": "step_00000002"' "$work/slow/log.jsonl" | cut -d : -f 1)" ]
check "a slow disk: one at a time, said once" [ "$(grep -c '^a save took .* hint: a larger --save-every' "$work/out")" -eq 1 ]
check "a slow disk: all are there" [ "$(logged "$work/slow" | tr -d _a-z0)" = "2 4 6 8 1 12" ]
run $training --steps 12 --save-every 2 --out "$work/fast"
for step in 2 4 6; do
    check "a slow disk: step $step has the bytes of a fast one" cmp -s "$work/fast/step_0000000$step/optimizer.safetensors" "$work/slow/step_0000000$step/optimizer.safetensors"
done
is_writing() { [ -n "$(ls -d "$work"/cut/.tmp-step_* 2>/dev/null)" ] && [ -e "$work/cut/step_00000002" ]; }
stopped_while_writing() {
    stop
    is_writing && return
    kill -CONT $child 2>/dev/null
    return 1
}
for signal in TERM KILL; do
    rm -rf "$work/cut"
    SLOW=30 LD_PRELOAD=$faults "$program" --device cpu $training --steps 100000000 --save-every 2 --out "$work/cut" >"$work/out" 2>"$work/err" </dev/null &
    child=$!
    await stopped_while_writing
    kill -$signal $child
    kill -CONT $child 2>/dev/null
    ended
    last=$(cd "$work/cut" && ls -d step_* | tail -n 1)
    if [ $signal = TERM ]; then
        check "SIGTERM while a thread writes: exit code $status" [ "$status" -eq 0 ]
        check "SIGTERM while a thread writes: the last step is saved" grep -q "stopped by a signal after step $(echo "$last" | sed 's/step_0*//'); --resume goes on from there\$" "$work/out"
    else
        check "SIGKILL while a thread writes: what it was at is left" [ -n "$(ls -d "$work"/cut/.tmp-step_*)" ]
    fi
    run $training --steps 14 --save-every 4 --resume --out "$work/cut"
    check "SIG$signal while a thread writes: resume, exit code $status" [ "$status" -eq 0 ]
    check "SIG$signal while a thread writes: goes on from the newest" grep -qE "^(resumed .*|finished: .*)/$last" "$work/out"
    check "SIG$signal while a thread writes: nothing is passed over" [ ! -s "$work/err" ]
    check "SIG$signal while a thread writes: no leftovers" [ -z "$(ls -A "$work/cut" | grep '^\.')" ]
done

# ---- a checkpoint that goes while it is read ----
k=1
n_failed=0
while [ $k -le 40 ]; do
    fresh
    faulty VANISH=$k --model "$out" --prompt hi --sample-tokens 4
    [ "$status" -eq 0 ] && ! grep -qE '^(error|warning)' "$work/err" || n_failed=$((n_failed + 1))
    [ -e "$out/step_00000012" ] && break
    k=$((k + 1))
done
check "sampling while its checkpoint goes at one of $k openings" [ "$n_failed" -eq 0 ]
check "sampling while its checkpoint goes: all openings are tried ($k)" eval '[ "$k" -gt 4 ] && [ "$k" -le 40 ]'

"$program" --device cpu $training --steps 100000000 --save-every 1 --keep 1 --out "$work/pruning" >/dev/null 2>&1 </dev/null &
child=$!
is_saved() { [ -n "$(ls -d "$work"/pruning/step_* 2>/dev/null)" ]; }
await is_saved
await has_steps 3 "$work/pruning/log.jsonl"
n_failed=0
for i in 1 2 3 4 5 6 7 8 9 10; do
    run --model "$work/pruning" --prompt hi --sample-tokens 4
    [ "$status" -eq 0 ] && ! grep -qE '^(error|warning)' "$work/err" || n_failed=$((n_failed + 1))
done
check "sampling beside a run that prunes ($n_failed of 10 failed)" [ "$n_failed" -eq 0 ]
kill -TERM $child
ended
finish
