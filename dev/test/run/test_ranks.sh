#!/bin/sh
# Several ranks as a user starts them: --gpus on the CPU and launchers' variables. They train as one, stop together, and what
# is wrong is one line. Usage: dev/test/run/test_ranks.sh [PROGRAM], from the repository root.
set -u
program=$(realpath "${1:-./train_gpt2}")
test=ranks
. dev/test/user.sh

make_text 200
tiny="--layers 2 --heads 2 --channels 32 --seq 16 --warmup 0 --seed 7 --train $work/text.txt --sample-tokens 0"
short="$tiny --batch 2 --tokens-per-step 256 --steps 5 --eval-every 0 --eval-batches 4"
long="$tiny --batch 2 --steps 1000000 --eval-every 0"

# numbers DIR: losses and norms of its log, one step a line.
numbers() { sed -n 's/.*"loss": *\([0-9.e+-]*\).*"norm": *\([0-9.e+-]*\).*/\1 \2/p; s/.*"val_loss": *\([0-9.e+-]*\).*/\1/p' "$1/log.jsonl"; }
# near DIR DIR: as many numbers, each within 1e-6 of the other's.
near() {
    numbers "$1" >"$work/a"
    numbers "$2" >"$work/b"
    [ -s "$work/a" ] && [ "$(wc -l <"$work/a")" -eq "$(wc -l <"$work/b")" ] &&
        paste -d' ' "$work/a" "$work/b" | awk '{ for (i = 1; i <= NF / 2; i++) { d = $i / $(i + NF / 2) - 1; if (d < -1e-6 || d > 1e-6) exit 1 } }'
}
# none_left NAME: no process has $work/NAME in its command line.
none_left() {
    echo "$work/$1" >"$work/name" # in a file: grep has a command line, too
    ! grep -qsaF -f "$work/name" /proc/[0-9]*/cmdline
}
# next_port: $port, which nobody uses. Below those that the system gives away.
port=$((20000 + $$ % 10000))
next_port() {
    port=$((20000 + (port + 1) % 10000))
    while grep -qs ":$(printf %04X $port) " /proc/net/tcp /proc/net/tcp6; do port=$((20000 + (port + 1) % 10000)); done
}
# rank R N FLAGS...: a process as a launcher starts it; output in $work/out_R and $work/err_R.
rank() {
    r=$1 n=$2
    shift 2
    RANK=$r WORLD_SIZE=$n LOCAL_RANK=$r MASTER_ADDR=localhost MASTER_PORT=$port LLMC_JOIN_SECONDS=${patience:-120} "$program" --device cpu "$@" >"$work/out_$r" 2>"$work/err_$r" </dev/null
}
lines() { cat "$@" | wc -l; }

# ---- as one ----
run $short --out "$work/one"
check "one rank: exit code $status" [ "$status" -eq 0 ]
for n in 2 4; do
    run $short --gpus $n --out "$work/of_$n"
    check "$n ranks: exit code $status" [ "$status" -eq 0 ]
    check "$n ranks: losses and norms of one" near "$work/one" "$work/of_$n"
    check "$n ranks: said once" [ "$(grep -c '^step 5/5 | loss' "$work/out")" -eq 1 ]
    check "$n ranks: the header" grep -qx "ranks  *$n on 1 host, by --gpus; TCP" "$work/out"
    check "$n ranks: nothing on stderr" [ ! -s "$work/err" ]
done
# threads [VALUE]: of each rank, where OMP_NUM_THREADS is that or not there.
threads() { env -u OMP_NUM_THREADS ${1+OMP_NUM_THREADS=$1} "$program" --device cpu $short --gpus 2 2>&1 </dev/null | grep -o '^device .* threads*,'; }
check "cores are shared out, where OMP_NUM_THREADS is empty or no number, too" [ "$(threads '')$(threads many)" = "$(threads)$(threads)" ]
run --model "$work/of_2" --tokenizer bytes --train "$work/text.txt" --batch 2 --eval-only --eval-batches 6
grep -E 'val loss|bits a byte' "$work/out" >"$work/expected"
run --model "$work/of_2" --tokenizer bytes --train "$work/text.txt" --batch 2 --eval-only --eval-batches 6 --gpus 3
grep -E 'val loss|bits a byte' "$work/out" >"$work/found"
check "evaluation by three ranks is that by one" cmp -s "$work/expected" "$work/found"
make_items 30
for n in 1 3; do
    run --model "$work/of_2" --tokenizer bytes --hellaswag "$work/items.bin" --batch 2 --eval-only --out "$work/scored_$n" --gpus $n
    check "hellaswag on $n ranks: exit code $status" [ "$status" -eq 0 ]
    check "hellaswag on $n ranks: a line of the score" grep -qE '^step 5 \| hellaswag acc_norm 0\.[0-9]+ \| acc 0\.[0-9]+ \| 30 items in ' "$work/out"
done
check "hellaswag on three ranks: the choices of one" cmp -s "$work/scored_1/log.jsonl" "$work/scored_3/log.jsonl"
check "hellaswag: the choices in the log" grep -qE '"items": *30, *"chosen": *"[0-3]{30}", *"evaluated": *"[^"]+"}$' "$work/scored_1/log.jsonl"
run $short --gpus 2 --memory
check "--memory: exit code $status" [ "$status" -eq 0 ]
check "--memory: of one rank" grep -qE '^ranks  *2, what follows is of one' "$work/out"
total() { sed -n 's/^  total  *//p' "$work/out"; }
for sharing in 1 2; do
    run $short --gpus 2 --context-gpus $sharing --memory
    planned=$(total)
    run $short --gpus 2 --context-gpus $sharing
    check "--memory, $sharing a sequence: the plan of the run" [ -n "$planned" -a "$planned" = "$(total)" ]
done
run $short --gpus 2 --out "$work/of_2" --resume
check "a finished run says so once: exit code $status" [ "$(grep -c '^finished: ' "$work/out")" -eq 1 ]

# ---- a launcher's ranks ----
next_port
rank 1 2 $short --out "$work/launched" &
rank 0 2 $short --out "$work/launched"
status=$?
wait
check "a launcher's ranks: exit code $status" [ "$status" -eq 0 ]
check "a launcher's ranks: losses and norms of one" near "$work/one" "$work/launched"
run $(echo "$short" | sed 's/--steps 5/--steps 6/') --gpus 2 --out "$work/launched" --resume
check "a launcher's ranks go on by --gpus: as many" [ "$(sed -n 's/^note: --\([a-z]*\) was .*/\1/p' "$work/out" | tr '\n' ,)" = steps, ]
check "a launcher's ranks: rank 1 prints nothing" [ "$(lines "$work/out_1" "$work/err_1")" -eq 0 ]
next_port
rank 1 2 $short --lr 1e-3 &
rank 0 2 $short --lr 2e-3
status=$?
wait
cat "$work/err_0" "$work/err_1" >"$work/err"
refused "another flag on one rank" '^error: rank 1 \(.*\) has --lr 0.001, rank 0 \(.*\) has --lr 0.002; hint: '
next_port
rank 1 2 $short --overfit &
rank 0 2 $short
status=$?
wait
cat "$work/err_0" "$work/err_1" >"$work/err"
refused "a switch on one rank" '^error: rank 1 \(.*\) has --overfit, rank 0 \(.*\) has no --overfit; hint: '
next_port
rank 1 2 $short &
rank 0 2 $short --out "$work/nobodys"
status=$?
wait
cat "$work/err_0" "$work/err_1" >"$work/err"
refused "a folder on one rank" '^error: rank 1 \(.*\) has no --out, rank 0 \(.*\) has --out .*nobodys; hint: '
check "a folder on one rank: it is not made" [ ! -e "$work/nobodys" ]
mkdir "$work/elsewhere"
# unlike_text FLAG FOUND: rank 1 has another text.txt, which FLAG names.
unlike_text() {
    here=$(echo "$short" | sed "s: --train [^ ]*: --train $work/text.txt $1 text.txt:; s: --train [^ ]* --train: --train:")
    next_port
    (cd "$work/elsewhere" && rank 1 2 $here) &
    (cd "$work" && rank 0 2 $here)
    status=$?
    wait
    cat "$work/err_0" "$work/err_1" >"$work/err"
    refused "unlike text on ranks" "^error: rank 1 \(.*\) has opened $2; hint: whole files "
}
head -n 150 "$work/text.txt" >"$work/elsewhere/text.txt"
unlike_text --train '[0-9,]+ tokens of --train, rank 0 \(.*\) [0-9,]+'
unlike_text --val '[0-9,]+ tokens to validate, rank 0 \(.*\) [0-9,]+'
tr a-y b-z <"$work/text.txt" >"$work/elsewhere/text.txt"
unlike_text --train 'other tokens of --train than rank 0 \(.*\), though as many'
unlike_text --val 'other tokens to validate than rank 0 \(.*\), though as many'
next_port
ln -s "$work/launched" "$work/model"
ln -s "$work/of_2" "$work/elsewhere/model"
newest="--model model --tokenizer bytes --train $work/text.txt --batch 2 --eval-only --eval-batches 6"
next_port
(cd "$work/elsewhere" && rank 1 2 $newest) &
(cd "$work" && rank 0 2 $newest)
status=$?
wait
cp "$work/err_0" "$work/err"
check "two checkpoints: exit code $status" [ "$status" -eq 1 ]
check "two checkpoints: the line" grep -qE '^error: --model model: rank 1 \(.*\) has loaded model/step_00000005, rank 0 model/step_00000006: ' "$work/err"
rank 1 3 $tiny --batch 2 &
rank 0 2 $tiny --batch 2
status=$?
wait
cat "$work/err_0" "$work/err_1" >"$work/err"
refused "another number of ranks" '^error: rank 1 \(.*\) was started as one of 3 ranks, rank 0 \(.*\) as one of 2; hint: '
patience=1
next_port
rank 0 3 $tiny --batch 2
status=$?
cp "$work/err_0" "$work/err"
check "nobody joins: exit code $status" [ "$status" -eq 1 ]
check "nobody joins: the line" grep -qE '^error: ranks 1-2 of 3 did not come to rank 0 ' "$work/err"
patience=

# ---- refusals ----
run $short --gpus 3
refused "three ranks" '--tokens-per-step 256 is not a multiple of .* 3 ranks = 96; hint: '
for variable in LLMC_JOIN_SECONDS=0 LLMC_STUCK_SECONDS=soon; do
    (export $variable && run $short --gpus 2; echo "$status" >"$work/status")
    status=$(cat "$work/status")
    refused "$variable" "^error: ${variable%=*}='${variable#*=}' is not a number from 1 to 86400$"
done
run $short --gpus 2 --out "$work/one"
refused "a folder with a run" 'holds checkpoints of another run'
run $tiny --gpus 2 --train nowhere
refused "two errors" 'given twice'
run --gpus 2 --train "$work/nowhere.txt"
refused "no data" 'nowhere.txt'
run --gpus 2 --model "$work/one" --prompt line
refused "a sample" '--prompt on several ranks'
run --gpus 2 --model "$work/one" --prompt-file "$work/text.txt"
refused "a sample of a file" '--prompt-file on several ranks'
run --gpus 2 --model "$work/one" --chat
refused "a chat" '--chat on several ranks'
run $short --gpus 2 --profile
refused "a profile" '--profile on several ranks'
run $short --restarts 2
refused "restarts without a folder" '--restarts: there is nothing to go on from'
command_refuses 'RANK is set, WORLD_SIZE is not' env RANK=1 "$program" --device cpu $short
command_refuses '--gpus: torchrun started this process, as rank 1 of 2' env RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost "$program" --device cpu $short --gpus 2
# exchange FLAGS: what a plan for two GPUs says of NCCL.
exchange() { ./train_gpt2cu --device cuda --train "$work/text.txt" --gpus 2 --memory "$@" | sed -n 's/^  exchange with other ranks *scratch *\([0-9.]* .iB\) .*/\1/p'; }
if [ -x ./train_gpt2cu ]; then
    light=$(exchange --optimizer adamw) heavy=$(NCCL_P2P_DISABLE=1 exchange --optimizer adamw) muon=$(exchange)
    check "--memory: NCCL takes less beside copies: $light, $heavy" [ "$light" = '577.0 MiB' -a "$heavy" = '1.3 GiB' ]
    check "--memory: Muon, the default, exchanges whole layers: $muon" [ "$muon" = '1.3 GiB' ]
    check "--memory: Muon exchanges more" [ "$(exchange --optimizer muon)" = "$heavy" ]
fi
if ! nvidia-smi -L >/dev/null 2>&1 && [ -x ./train_gpt2cu ]; then
    command_refuses 'no CUDA device' ./train_gpt2cu --device cuda --gpus 2
elif [ -x ./train_gpt2cu ]; then
    command_refuses '--gpus 1000: this machine has [0-9]+; hint: --gpus [0-9]+' ./train_gpt2cu --device cuda --gpus 1000 --train "$work/text.txt"
fi

# ---- signals ----
# Where another rank's signal stopped all, and rank 0's came within the save behind it, once more.
for try in 1 2 3 4 5; do
    rm -rf "$work/stopped"
    start $long --gpus 3 --out "$work/stopped"
    await has_steps 3 "$work/stopped/log.jsonl"
    kill -TERM $child
    ended
    grep -q '^stopping when this checkpoint' "$work/err" || break
done
check "SIGTERM: exit code $status" [ "$status" -eq 0 ]
check "SIGTERM: said once" [ "$(grep -c '^stopping after this step' "$work/err")" -eq 1 ]
stopped=$(sed -n 's/^stopped by a signal after step \([0-9]*\); --resume goes on from there$/\1/p' "$work/out")
check "SIGTERM: saved where it stopped" [ -d "$work/stopped/step_$(printf %08d "${stopped:-0}")" ]
check "SIGTERM: no process is left" none_left stopped
run $tiny --batch 2 --steps $((stopped + 2)) --eval-every 0 --eval-batches 2 --gpus 3 --out "$work/stopped" --resume
check "it goes on: exit code $status" grep -qx "resumed *$work/stopped/step_$(printf %08d "${stopped:-0}"), step $stopped" "$work/out"
# stopped_within WHAT STEP LINE FLAGS...: a signal comes in what follows step 5 and takes long; STEP is the last, and no LINE comes.
# Where a busy machine held up the signal until LINE was there, once more.
stopped_within() {
    what=$1 last=$2 line=$3
    shift 3
    for try in 1 2 3 4 5; do
        rm -rf "$work/within"
        start $(echo "$long" | sed 's/ --eval-every 0//; s/ --sample-tokens 0//') --gpus 2 --out "$work/within" "$@"
        await has_steps 5 "$work/within/log.jsonl"
        kill -TERM $child
        ended
        grep -q "$line" "$work/out" || break
    done
    check "SIGTERM in a $what: exit code $status" [ "$status" -eq 0 ]
    check "SIGTERM in a $what: saved step $last" [ -d "$work/within/step_0000000$last" ]
    check "SIGTERM in a $what: it was not waited for" [ "$(grep -c "$line" "$work/out")" -eq 0 ]
    rm -rf "$work/within"
}
make_items 3000
stopped_within validation 5 ' | val loss ' --eval-every 5 --eval-batches 200000 --sample-tokens 0
stopped_within score 5 ' | hellaswag ' --eval-every 5 --eval-batches 1 --sample-tokens 0 --hellaswag "$work/items.bin"
stopped_within sample 6 '^step *7/' --eval-every 0 --sample-every 5 --sample-tokens 60000000
start $long --gpus 2 --out "$work/asked"
await has_steps 3 "$work/asked/log.jsonl"
kill -USR1 $child
await grep -q '^saved step .* on request' "$work/out"
check "SIGUSR1: saved" grep -q '^saved step .* on request' "$work/out"
kill -KILL $child
ended
await none_left asked
check "a parent that is killed leaves no process" none_left asked

# Ranks end a step together, however long it takes.
start $(echo "$long" | sed 's/--steps 1000000/--steps 9 --tokens-per-step 32000000/') --gpus 2
await grep -q '^a micro-step takes' "$work/out"
kill -TERM $child
await grep -q '^stopping' "$work/err"
check "SIGTERM in a long step: it comes to its end" grep -qE '^stopping after this step(, about [0-9]+ s)?; again: end without saving$' "$work/err"
kill -KILL $child
ended

# ---- a host's memory is all its ranks' ----
large="--layers 2 --heads 2 --channels 64 --seq 1024 --warmup 0 --train $work/text.txt --device cpu"
most=$("$program" $large --memory | sed -n 's/.*largest that fits *--batch //p')
most_of_4=$("$program" $large --memory --gpus 4 | sed -n 's/.*largest that fits *--batch //p')
check "four ranks have some memory each: --batch $most_of_4 of $most" [ "${most_of_4:-0}" -gt 0 ]
check "four ranks have no more than a third each" [ $((most_of_4 * 3)) -lt "$most" ]
half=$((most / 2))
"$program" $large --batch $half --tokens-per-step $((3 * half * 1024)) --gpus 3 --steps 1 --out "$work/too_large" >"$work/out" 2>"$work/err" </dev/null
status=$?
check "three ranks of half the memory each: exit code $status" [ "$status" -eq 1 ]
check "three ranks of half the memory each: one line" grep -qE "^error: --batch $half --seq 1024 needs [0-9.]+ GiB, [0-9.]+ GiB are free for 3 ranks; hint: --batch [0-9]+ fits" "$work/err"
check "three ranks of half the memory each: that line alone" [ "$(wc -l <"$work/err")" -eq 1 ]

# ---- limits of the system ----
# A GPU's libraries have a dozen files open; without one the parent is given some.
few=16 given=
case $program in *cu) ;; *) few=12 given='3</dev/null 4</dev/null 5</dev/null 6</dev/null 7</dev/null 8</dev/null 9</dev/null' ;; esac
(eval "exec $given" && ulimit -n $few && exec "$program" --device cpu $short --gpus 4) >"$work/out" 2>"$work/err" </dev/null
status=$?
check "few open files: exit code $status, expected 1" [ "$status" -eq 1 ]
check "few open files: one line, which says so" [ "$(grep -c '' "$work/err")" = "$(grep -cE "^error: 4 ranks need [0-9]+ open files in a process, the limit is $few; hint: ulimit -n\$" "$work/err")" ]
(eval "exec $given" && ulimit -S -n $few && exec "$program" --device cpu $short --gpus 4) >"$work/out" 2>"$work/err" </dev/null
check "few open files, but more are allowed: exit code" [ $? -eq 0 ]
run --layers 1 --heads 2 --channels 32 --seq 16 --gpus 1000 --train "$work/nowhere"
[ "$(nproc)" -gt 200 ] || check "many ranks: a note before they start" grep -qE '^note: --gpus 1000: 1000 processes share [0-9]+ cores?, which is slow; hint: --gpus [0-9]+$' "$work/out"
core=$(taskset -cp $$ 2>/dev/null | sed -n 's/.*: *\([0-9]*\).*/\1/p')
if [ "$core" ]; then
    taskset -c "$core" "$program" --device cpu --layers 1 --heads 2 --channels 32 --seq 16 --gpus 5 --train "$work/nowhere" >"$work/out" 2>"$work/err"
    check "five ranks on one core that they may use: a note" grep -qx 'note: --gpus 5: 5 processes share 1 core, which is slow; hint: --gpus 1' "$work/out"
else
    skipped=$((skipped + 1))
fi

if unshare -rm sh -c 'mount -t tmpfs none /proc' 2>/dev/null; then
    unshare -rm sh -c 'mount -t tmpfs none /proc && exec "$@"' sh "$program" --device cpu $short --gpus 2 >"$work/out" 2>"$work/err" </dev/null
    status=$?
    check "without /proc: exit code $status" [ "$status" -eq 0 ]
else
    skipped=$((skipped + 1))
fi

# ---- restarts ----
run $tiny --batch 2 --steps 200 --eval-every 0 --gpus 2 --lr 100 --weight-decay 100 --schedule constant --restarts 2 --out "$work/diverged"
check "diverged: exit code $status, expected 1" [ "$status" -eq 1 ]
check "diverged: one error" [ "$(grep -c '^error: ' "$work/err") $(grep -c '^error: 3 steps in a row' "$work/err")" = '1 1' ]
check "diverged: it is not started again" [ "$(grep -c '^no restart: the same steps' "$work/err") $(grep -c '^restart ' "$work/err")" = '1 0' ]
start $long --save-every 5 --keep 2 --gpus 2 --restarts 1 --out "$work/again"
has_checkpoint() { [ -n "$(ls -d "$work"/again/step_* 2>/dev/null)" ]; }
await has_checkpoint
kill -KILL "$(ranks_of $child | tail -n 1)"
await grep -q '^restart 1 of 1' "$work/err"
trains_again() { sed '1,/^resumed/d' "$work/out" | grep -q '^step '; }
await trains_again
check "a killed rank: one line names it" [ "$(grep -c '^error: rank 1 ' "$work/err")" -eq 1 ]
check "a killed rank: it starts again" grep -q '^restart 1 of 1, from the newest checkpoint' "$work/err"
check "a killed rank: from a checkpoint" grep -qE '^resumed .*/step_0*[0-9]*[05], step [0-9]*[05]$' "$work/out"
kill -TERM $child
ended
check "then it is stopped: exit code $status" [ "$status" -eq 0 ]
check "then it is stopped: no process is left" none_left again
start $long --gpus 2 --restarts 2 --save-every 5 --out "$work/lost"
await has_steps 3 "$work/lost/log.jsonl"
mv "$work/text.txt" "$work/moved.txt"
kill -KILL "$(ranks_of $child | tail -n 1)"
ended
mv "$work/moved.txt" "$work/text.txt"
check "data that is gone at a restart: exit code $status, expected 1" [ "$status" -eq 1 ]
check "data that is gone at a restart: each says so" [ "$(grep -c '^restart ' "$work/err") $(grep -c 'text.txt: no such file' "$work/err")" = '2 2' ]
finish
