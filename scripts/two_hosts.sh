#!/bin/sh
# Two hosts of one machine: network namespaces with a cable between them, two CPU ranks on each, started as torchrun starts them.
# They must train to the weights of four ranks on one host; when the cable is pulled all must end within 15 s with a line, leave
# nothing, and go on from the newest checkpoint when it is back. A slow cable must change nothing but the time.
# Usage: scripts/two_hosts.sh [PROGRAM [FLAGS...]]     (PROGRAM: ./train_gpt2), from the repository root. Needs `ip`, `unshare` and
# either root or user namespaces; says so and skips, exit 0, where the system has none. About a minute.
set -u
case ${1:-} in -h | --help) sed -n '2,6s/^# //p' "$0" && exit ;; esac
program=${1:-./train_gpt2}
[ $# -eq 0 ] || shift
[ -x "$program" ] || { echo "error: $program is missing; hint: make NVCC= train_gpt2" >&2; exit 2; }
if [ -z "${TWO_HOSTS_INSIDE:-}" ]; then
    for tool in ip unshare nsenter; do command -v $tool >/dev/null || { echo "two_hosts: skipped: no $tool"; exit 0; }; done
    unshare -rnu sh -c 'ip link add name left type veth peer name right' 2>/dev/null || { echo 'two_hosts: skipped: the system makes no network namespaces'; exit 0; }
    TWO_HOSTS_INSIDE=1 exec unshare -rnu "$0" "$program" "$@"
fi
[ $# -gt 0 ] || set -- --model nano --batch 4 --seq 64 --steps 60 --save-every 10
work=$(mktemp -d) second='' ranks='' failed=0
trap 'for pid in $ranks $second; do kill -KILL "$pid" 2>/dev/null; done; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The second host is the namespace of a process that sleeps.
hostname host0
unshare -nu sh -c 'hostname host1; exec sleep 3600' &
second=$!
sleep 0.5
ip link add name left type veth peer name right && ip link set right netns $second || { echo 'two_hosts: skipped: no link between namespaces'; exit 0; }
on_second() { nsenter -t $second -n -u -- "$@"; }
ip address add 10.77.0.1/24 dev left && ip link set left up && ip link set lo up
on_second ip address add 10.77.0.2/24 dev right && on_second ip link set right up && on_second ip link set lo up

# check NAME CONDITION...
check() {
    name=$1
    shift
    if "$@"; then echo "ok    $name"; else
        echo "WRONG $name"
        cat "$work"/err* 2>/dev/null | head -n 8
        failed=$((failed + 1))
    fi
}
# start OUT FLAGS...: four ranks, two a host; pids in $ranks. stderr of each in its own file.
start() {
    out=$1
    shift
    ranks=
    rm -f "$work"/err*
    for rank in 0 1 2 3; do
        enter=env
        [ $rank -lt 2 ] || enter="nsenter -t $second -n -u -- env"
        $enter RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$((rank % 2)) LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29511 OMP_NUM_THREADS=1 \
            timeout -s KILL 120 "$program" --device cpu --train README.md --sample-tokens 0 --eval-every 0 --out "$out" "$@" >"$work/out$rank" 2>"$work/err$rank" </dev/null &
        ranks="$ranks $!"
    done
}
# finish: waits for all; their exit codes in $codes.
finish() {
    codes=
    for pid in $ranks; do
        wait "$pid"
        codes="$codes $?"
    done
    ranks=
}
steps() { grep -c '"ms"' "$1/log.jsonl" 2>/dev/null || :; }
newest() { for folder in "$1"/step_*; do :; done; sha256sum <"$folder/model.safetensors"; }
now() { date +%s; }

OMP_NUM_THREADS=1 "$program" --device cpu --gpus 4 --train README.md --sample-tokens 0 --eval-every 0 --out "$work/one_host" "$@" >"$work/out0" 2>"$work/err0" </dev/null
check 'four ranks on one host' [ $? -eq 0 ]
expected=$(newest "$work/one_host")

start "$work/two_hosts" "$@"
finish
check "two hosts: exit codes$codes" [ "$codes" = ' 0 0 0 0' ]
check 'two hosts: the weights of one host' [ "$(newest "$work/two_hosts")" = "$expected" ]

if command -v tc >/dev/null && tc qdisc add dev left root netem delay 2ms rate 200mbit 2>/dev/null; then
    start "$work/slow" "$@"
    finish
    check "a slow cable: exit codes$codes" [ "$codes" = ' 0 0 0 0' ]
    check 'a slow cable: the same weights' [ "$(newest "$work/slow")" = "$expected" ]
    tc qdisc delete dev left root
else
    echo 'skip  a slow cable: no netem'
fi

start "$work/cut" "$@"
until [ "$(steps "$work/cut")" -ge 15 ] 2>/dev/null || ! kill -0 ${ranks##* } 2>/dev/null; do sleep 0.1; done
ip link set left down
began=$(now)
finish
took=$(($(now) - began))
check "the cable is pulled: exit codes$codes" [ "$codes" = ' 1 1 1 1' ]
check "the cable is pulled: ended after $took s" [ $took -le 15 ]
lines=$(cat "$work"/err* | wc -l)
check "the cable is pulled: $lines lines, one a host at most" eval '[ "$lines" -ge 1 ] && [ "$lines" -le 2 ]'
cat "$work"/err*
ip link set left up
start "$work/cut" "$@" --resume
finish
check "the cable is back: exit codes$codes" [ "$codes" = ' 0 0 0 0' ]
check 'the cable is back: the weights of a run without a fault' [ "$(newest "$work/cut")" = "$expected" ]
[ $failed -eq 0 ] && echo 'two_hosts: all as it should be'
exit $((failed > 0))
