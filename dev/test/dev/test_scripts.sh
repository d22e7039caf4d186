#!/bin/sh
# The scripts that prepare data, draw and time, as far as a machine without network, card and packages can tell: bad input is
# one line and exit 2, and leaves nothing behind. Usage: dev/test/dev/test_scripts.sh, from the repository root.
set -u
test=scripts
. dev/test/user.sh
if ! command -v python3 >/dev/null 2>&1; then
    echo 'scripts: 0 passed, 0 failed, 1 skipped'
    exit 0
fi
export PYTHONDONTWRITEBYTECODE=1
unset TEXT

# ---- data ----
for script in text tinyshakespeare tinystories fineweb; do
    python3 data/$script.py --help >"$work/out" 2>"$work/err"
    check "$script.py --help: exit code" [ $? -eq 0 ]
    check "$script.py --help: says what it writes" grep -q '\.bin\|_NNNNNN' "$work/out"
    command_refuses 'unrecognized arguments: --nosuch.*--help' python3 data/$script.py --nosuch x --out "$work/data"
    command_refuses "--out: expected a value, found ''" python3 data/$script.py --out= $([ $script = text ] && echo README.md)
done
command_refuses 'required: FILE, --out' python3 data/text.py
command_refuses "$work/none: No such file" python3 data/text.py README.md "$work/none" --out "$work/data"
evil=$(printf 'no\033[31m\233\302\233\342\200\256') # of which no byte may reach the terminal
command_refuses "$work/no\?\[31m\?\?\?: no such file" python3 data/text.py "$work/$evil" --out "$work/data"
command_refuses "$work/no\?\[31m\?\?\?: No such file" python3 scripts/plot.py "a=$work/$evil"
command_refuses "$work: Is a directory" python3 data/text.py "$work" --out "$work/data"
command_refuses '--val-fraction nan: expected 0 to below 1' python3 data/text.py README.md --out "$work/data" --val-fraction nan
command_refuses '--shard-tokens 0: expected 1 to' python3 data/text.py README.md --out "$work/data" --shard-tokens 0
command_refuses "--workers: invalid int value: '2x'" python3 data/text.py README.md --out "$work/data" --workers 2x
command_refuses '--name a/b: expected a name' python3 data/text.py README.md --out "$work/data" --name a/b
command_refuses "invalid choice: '3B'" python3 data/fineweb.py --version 3B --out "$work/data"
command_refuses '--max-shards 0: expected 1 to' python3 data/fineweb.py --max-shards 0 --out "$work/data"
command_refuses "$work: no \*.parquet files" python3 data/fineweb.py --source "$work" --out "$work/data"
command_refuses 'only --version 10B' python3 data/fineweb.py --pretokenized --version edu10B --out "$work/data"
command_refuses 'README.md: size: expected 1115394 bytes' python3 data/tinyshakespeare.py --source README.md --out "$work/data"
command_refuses 'README.md: not an archive of stories' python3 data/tinystories.py --source README.md --out "$work/data"
check "bad input makes no folder" [ ! -e "$work/data" ]
command_refuses "TEXT=$work/none: expected a readable file" env TEXT="$work/none" sh scripts/default_text.sh
: >"$work/empty"
command_refuses "TEXT=$work/empty: the file is empty" env TEXT="$work/empty" sh scripts/default_text.sh

# The output goes through a pipe: the limit is of files.
{ (ulimit -f 1; PYTHONPATH=data python3 -c "import common; common.run(lambda: common.write_file('$work/big.bin', bytes(100000)))" 2>&1; echo "status $?") | cat; } >"$work/out"
check "a full disk: a failure at run time, with the file" [ "$(cat "$work/out")" = "error: $work/big.bin: File too large
status 1" ]
check "a full disk: nothing is half-written" [ "$(ls "$work" | grep -c big)" -eq 0 ]

# ---- plots and benchmarks ----
plot=scripts/plot.py
command_refuses 'required: \[NAME=\]RUN' python3 $plot
command_refuses "$work/none: No such file" python3 $plot "a=$work/none"
command_refuses "$work/log.jsonl: No such file" python3 $plot "$work"
command_refuses 'README.md:1: expected a line of a log.jsonl' python3 $plot README.md
command_refuses 'default_run.png: expected a log.jsonl, found no text' python3 $plot dev/results/cpu/default_run.png
command_refuses '/empty: no step in it' python3 $plot "$work/empty"
command_refuses "--smooth: expected an integer from 1.*'0'" python3 $plot --smooth 0 README.md
command_refuses "--panels: expected names of loss,.*found 'loss,loss'" python3 $plot --panels loss,loss README.md
command_refuses '--out x.gif: expected a path that ends with one of .png, .svg, .pdf' python3 $plot --out x.gif README.md
command_refuses "$work/none/x.png: cannot be written: no such folder" python3 $plot --out "$work/none/x.png" README.md
command_refuses "$work/none: No such file" python3 scripts/report.py "$work/none"
command_refuses "$work/none/x.html: cannot be written: no such folder" python3 scripts/report.py --out "$work/none/x.html" README.md
command_refuses 'unrecognized arguments: more.*--help' python3 scripts/report.py README.md more
echo mine >"$work/my.txt"
command_refuses "--out $work/my.txt: expected a path that ends with one of .html, .htm" python3 scripts/report.py --out "$work/my.txt" "$work/empty"
check "report.py: a text of the user's stays" grep -q mine "$work/my.txt"
command_refuses 'required: \[NAME=\]RUN' python3 scripts/to_tensorboard.py --follow
printf '{"step": 1, "loss": 2.5}\n[1]\n' >"$work/log.jsonl"
command_refuses "log.jsonl:2: expected a line of a log.jsonl, found '\[1\]'" python3 $plot "$work/log.jsonl"
command_refuses 'expected one FILE.bin' python3 scripts/random_shard.py
command_refuses '/none/x.bin: No such file' python3 scripts/random_shard.py "$work/none/x.bin"
for shape in 64x1024 64, ,64 0,64 64,0 a,b 1,2,3 64; do
    command_refuses "expected B,T, as 64,1024; found '$shape'" sh scripts/bench_train.sh 4,16 "$shape"
done
check "bench_train.sh --help" sh -c 'sh scripts/bench_train.sh --help | grep -q "^Usage: .*B,T"'
if card_is_missing; then
    command_refuses 'no NVIDIA GPU on this machine; hint: ' sh scripts/bench_train.sh 1,64
else
    skipped=$((skipped + 1))
fi
mkdir "$work/bench" "$work/tmp" && cp -r scripts "$work/bench"
printf '#!/bin/sh\n[ "$1" != --version ] || exit 0\necho $$ >pid\nexec sleep 600\n' >"$work/bench/train_gpt2cu" && chmod +x "$work/bench/train_gpt2cu"
(cd "$work/bench" && TMPDIR=$work/tmp FLAGS='--device cpu' exec sh scripts/bench_train.sh 1,64) >"$work/out" 2>"$work/err" &
child=$!
await [ -s "$work/bench/pid" ]
kill $child
ended
check "bench_train.sh ended by a signal: exit code 143" [ "$status" -eq 143 ]
check "bench_train.sh ended by a signal ends its trainer" sh -c "! kill -0 \$(cat $work/bench/pid) 2>/dev/null"
check "bench_train.sh ended by a signal leaves nothing behind" [ -z "$(ls "$work/tmp")" ]
finish
