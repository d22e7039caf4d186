#!/bin/sh
# Ranks that are killed or stopped in the middle of a run: all end soon with one line, and the run goes on from its newest
# checkpoint to the bits of a run that nobody disturbed. Bits of weights that flip are noticed. Three ranks on the CPU.
# Usage: [KILLS=N] dev/test/comm/test_faults.sh [PROGRAM], from the repository root: N kills of each rank, 1 unasked.
set -u
program=${1:-./train_gpt2}
test=faults
. dev/test/user.sh

make_text 200
tiny="--device cpu --layers 1 --heads 2 --channels 32 --batch 2 --seq 16 --tokens-per-step 192 --warmup 0 --seed 7
--schedule constant --train $work/text.txt --save-every 50 --keep 2 --eval-every 90 --eval-batches 2 --sample-tokens 0"
job="$tiny --gpus 3 --steps 500 --verify-every 70"
host=$(cat /proc/sys/kernel/hostname)
export OMP_NUM_THREADS=1

weights() { cat "$1/step_00000500/model.safetensors" "$1/step_00000500/optimizer.safetensors" | cksum; }
now() { sed 's/ .*//' /proc/uptime; }
# since TIME: whole seconds.
since() { echo "$1 $(now)" | awk '{ print int($2 - $1) }'; }

# begin FOLDER STEPS OUT ERR: a run into FOLDER that has made so many steps; its process is $child.
begin() {
    rm -rf "${1:?}"
    "$program" $job --out "$1" >"$3" 2>"$4" </dev/null &
    child=$!
    await has_steps "$2" "$1/log.jsonl"
}
# disturb NAME SIGNAL RANKS STEPS: a run, and the signal to ranks of it after so many steps. Leaves in $work/NAME: out, err, status, took (seconds
# from the signal to the end) and left (ranks that are there still). A run that was over before says nothing: another, up to ten.
disturb() {
    mkdir "$work/$1"
    for try in 1 2 3 4 5 6 7 8 9 10; do
        begin "$work/$1/run" 1 "$work/$1/out" "$work/$1/err"
        ranks=$(ranks_of $child)
        await has_steps "$4" "$work/$1/run/log.jsonl"
        begun=$(now)
        for which in $3; do kill "-$2" $(echo "$ranks" | sed -n "$((which + 1))p") 2>/dev/null; done
        ended
        [ "$status" -eq 0 ] || break
    done
    echo "$status" >"$work/$1/status"
    since "$begun" >"$work/$1/took"
    for p in $ranks; do [ -d "/proc/$p" ] && echo "$p"; done >"$work/$1/left"
}
# judge NAME RANK WHY: as judge_line.
judge() {
    judge_line "$1" "rank $2 \($host\), (in|before|at) [a-z0-9 ]+: $3; (no checkpoint was saved|the newest whole checkpoint is of step [0-9]+, in $work/$1/run)"
}
# judge_line NAME PATTERN: how it ended, with which line, and what becomes of it.
judge_line() {
    cp "$work/$1/out" "$work/$1/err" "$work"
    status=$(cat "$work/$1/status") took=$(cat "$work/$1/took")
    check "$1: exit code $status, expected 1" [ "$status" -eq 1 ]
    check "$1: $took s, expected less than $soon" [ "$took" -lt $soon ]
    check "$1: ranks are left: $(cat "$work/$1/left")" [ ! -s "$work/$1/left" ]
    check "$1: one line on stderr" [ "$(wc -l <"$work/$1/err")" -eq 1 ]
    check "$1: says who and why" grep -qE "^error: $2$" "$work/$1/err"
    "$program" $job --out "$work/$1/run" --resume >"$work/out" 2>"$work/err" </dev/null
    check "$1: resumes" [ $? -eq 0 ]
    check "$1: the bits of a run that nobody disturbed" [ "$(weights "$work/$1/run")" = "$whole" ]
    rm -rf "${work:?}/$1"
}

begun=$(now)
"$program" $job --out "$work/whole" >"$work/out" 2>"$work/err" </dev/null
soon=$((20 + $(since "$begun"))) # 8 s of silence, and what a busy machine adds; three times 8 are too many
check "an undisturbed run: exit code $?" [ -f "$work/whole/step_00000500/model.safetensors" ]
whole=$(weights "$work/whole")

# suspend: ctrl-Z, and later fg.
suspend() {
    for try in 1 2 3 4 5 6 7 8 9 10; do
        begin "$work/suspended" 25 "$work/suspended.out" "$work/suspended.err"
        ranks=$(ranks_of $child)
        kill -TSTP $child
        await is_stopped $child $ranks
        for p in $child $ranks; do cat "/proc/$p/comm"; done >"$work/suspended.names"
        steps=$(grep -c '"norm"' "$work/suspended/log.jsonl")
        [ "$steps" -eq 500 ] || break # else it was over before
        kill -CONT $child
        ended
    done
    sleep 10
    [ "$(grep -c '"norm"' "$work/suspended/log.jsonl")" = "$steps" ] && [ "$steps" -lt 500 ] && : >"$work/stood"
    kill -CONT $child
    ended
    echo "$status" >"$work/suspended.status"
}
# wait_for_disk: a save takes nine seconds, many thousand steps, and the next one waits for it; to remove the first one takes
# twice as long, at the end: no rank hangs.
wait_for_disk() {
    SLOW=1000 LLMC_STUCK_SECONDS=5 LD_PRELOAD=$slows "$program" $(echo "$tiny" | sed "s:--save-every 50 --keep 2:--save-every 200 --keep 1:") --steps 400 --gpus 3 --out "$work/slow" >"$work/slow.out" 2>"$work/slow.err" </dev/null
    echo $? >"$work/slow.status"
}
# wait_for_data: in every rank one read of a shard takes twelve seconds.
wait_for_data() {
    { printf '\210\330\064\001\001\0\0\0\120\303\0\0' && head -c 101012 /dev/zero; } >"$work/zeros.bin"
    LATE=800:12000 LLMC_STUCK_SECONDS=5 LD_PRELOAD=$slows "$program" ${tiny%--train*} --train "$work/zeros.bin" --val "$work/zeros.bin" --tokenizer bytes --steps 100 --eval-batches 2 --sample-tokens 0 --gpus 3 --out "$work/late" >"$work/late.out" 2>"$work/late.err" </dev/null
    echo $? >"$work/late.status"
}
# These take ten seconds and more, and wait; the faults below come meanwhile.
for rank in 0 1 2; do disturb "stopped-$rank" STOP $rank 25 & done
disturb stopped-both STOP "0 1" 25 &
suspend &
slows=$work/disk_faults.so
${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$slows" dev/test/disk_faults.c -ldl 2>"$work/slow.err" && { wait_for_disk & wait_for_data & }

for rank in 0 1 2; do
    kill=1
    while [ $kill -le "${KILLS:-1}" ]; do
        disturb "killed-$rank-$kill" KILL $rank "$(awk 'BEGIN { srand(); print 25 + int(200 * rand()) }')"
        judge "killed-$rank-$kill" $rank 'its process is gone'
        kill=$((kill + 1))
    done
done

# ---- asked to end before the first step ----
# A rank that the signal ends by itself, as nothing catches it yet: it is meant for all, and nothing is begun again.
large=$(echo "$job" | sed 's/--layers 1/--layers 12/; s/--channels 32/--channels 512/') # which takes a while to begin
for try in 1 2 3; do
    rm -rf "$work/early"
    "$program" $large --restarts 2 --out "$work/early" >"$work/out" 2>"$work/err" </dev/null &
    child=$!
    until [ -n "$(ranks_of $child)" ] || is_gone; do :; done
    kill -TERM $(ranks_of $child | tail -n 1) 2>/dev/null
    ended
    check "asked to end early: exit code $status" [ "$status" -eq 0 -o "$status" -eq 143 ]
    check "asked to end early: no restart" [ "$(grep -c '^restart' "$work/err")" -eq 0 ]
done

# ---- memory that loses bits ----
# preloaded NAME LIBRARY SWITCH ARGS...: a run that ends with one line once the file SWITCH is there, from step 125 on.
preloaded() {
    case=$1 library=$2 switch=$3
    shift 3
    rm -f "$switch"
    LD_PRELOAD=$library "$program" $tiny --steps 100000 "$@" --out "$work/$case" >"$work/out" 2>"$work/err" </dev/null &
    child=$!
    await has_steps 125 "$work/$case/log.jsonl"
    begun=$(now)
    : >"$switch"
    ended
    took=$(since "$begun")
    check "$case: exit code $status, expected 1" [ "$status" -eq 1 ]
    check "$case: one line on stderr" [ "$(wc -l <"$work/err")" -eq 1 ]
}
# corrupt NAME PATTERN ARGS...: bits of $FLIP_RANK's weights are flipped. All ranks find it; where rank 0 is late, another says it.
corrupt() {
    pattern=$2
    preloaded "$1" "$flips" "$FLIP_WHILE" $3 $4
    check "$case: says $pattern" grep -qE "^error: (rank [12] \($host\), in step [0-9]+: )?step [0-9]+$pattern(; the newest whole checkpoint is of .*)?$" "$work/err"
}
flips=$work/bit_flips.so
export FLIP_WHILE="$work/flip" FLIP_BYTES=60000
if ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$flips" dev/test/bit_flips.c -ldl -lpthread 2>"$work/err"; then
    equal='and must not; stopped and not saved; (no checkpoint|the checkpoint of step [0-9]+) was saved while they were equal'
    export FLIP_RANK=1
    corrupt one-of-three "00: the weights of rank 1 \($host\) differ from those of the others, $equal" --gpus 3
    corrupt one-of-two "00: the weights of rank 0 \($host\) and rank 1 \($host\) differ, $equal" --gpus 2
    unset FLIP_RANK
    corrupt alone ' was computed twice, and its gradients differ: .*; stopped and not saved, earlier checkpoints stand, up to step [0-9]+' --verify-every 1
else
    echo "skip: faults: no C compiler makes a shared object: $(head -n 1 "$work/err")"
    skipped=$((skipped + 1))
fi

# ---- a rank that hangs and lives ----
# hang RANK: what the others wait for never comes.
hang() {
    export HANG_RANK=$1
    most_looks=3000 # a busy machine's longest step of 6 s is a minute here
    preloaded "hung-$1" "$hangs" "$HANG_WHILE" --gpus 3
    most_looks=
    waited=$(sed -n 's/.* done for \([0-9]*\) s, .*/\1/p' "$work/err") # of a busy machine's longest step ten times
    check "$case: $took s, expected less than ${waited:-0} + $soon" [ "$took" -lt $((${waited:-0} + soon)) ]
    check "$case: says so" grep -qE "^error: in [a-z0-9 ]+: no rank has got anything done for [0-9]+ s, a step took [0-9.]+ s at most: a GPU or a link hangs; .* is of step [0-9]+, in $work/hung-$1$" "$work/err"
}
# Without validations it is by steps alone that the ranks are known to get on.
tiny=$(echo "$tiny" | sed 's/--eval-every 90/--eval-every 0/')
hangs=$work/hang.so
export HANG_WHILE="$work/hang" LLMC_STUCK_SECONDS=3
if ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$hangs" dev/test/hang.c -ldl -lpthread 2>"$work/err"; then
    hang 0
    hang 2
else
    skipped=$((skipped + 1))
fi

# ---- what was begun above ----
wait
check "suspended: ranks are called as their parent: $(tr '\n' ' ' <"$work/suspended.names")" [ "$(sort -u "$work/suspended.names" | wc -l)" -eq 1 ]
check "suspended: nobody trains meanwhile" [ -f "$work/stood" ]
check "suspended: goes on to the end" [ "$(cat "$work/suspended.status")" = 0 ]
check "suspended: not a word of it" [ ! -s "$work/suspended.err" ]
check "suspended: the same bits" [ "$(weights "$work/suspended")" = "$whole" ]
if [ -f "$slows" ]; then
    check "a slow disk: exit code $(cat "$work/slow.status")" [ "$(cat "$work/slow.status")" = 0 ]
    check "a slow disk: not a word on stderr" [ ! -s "$work/slow.err" ]
    check "a slow disk: it is slow" grep -qE '"checkpoint": "step_00000200", "seconds": ([789]|[0-9]{2})\.' "$work/slow/log.jsonl"
    check "a late read: exit code $(cat "$work/late.status")" [ "$(cat "$work/late.status")" = 0 ]
    check "a late read: not a word on stderr" [ ! -s "$work/late.err" ]
    check "a late read: it is late" [ "$(sed -n 's/.*"ms": \([0-9]*\).*/\1/p' "$work/late/log.jsonl" | sort -n | tail -n 1)" -ge 11500 ]
fi
for rank in 0 1 2; do judge "stopped-$rank" $rank 'no sign of life for 8 s: stopped, or its host is gone'; done
judge_line stopped-both '2 ranks, rank 0 the first, gave no sign of life and had to be killed: stopped, or their devices hang'
finish
