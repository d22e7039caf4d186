#!/bin/sh
# The program as a user runs it: bad input, checkpoints and resume, signals, sampling. Every run is tiny and on the CPU.
# Usage: dev/test/run/test_cli.sh [PROGRAM], from the repository root. Ends with 'cli: N passed, N failed, N skipped'.
set -u
program=${1:-./train_gpt2}
test=cli
. dev/test/user.sh

case $program in /*) here=$program ;; *) here=$PWD/$program ;; esac
# elsewhere ARGS...: the same from a folder without a default text.
elsewhere() {
    (cd "$work" && "$here" --device cpu "$@") >"$work/out" 2>"$work/err" </dev/null
    status=$?
}
has_checkpoint() { [ -n "$(ls -d "$1"/step_* 2>/dev/null)" ]; }
tiny="--model nano --layers 2 --heads 2 --channels 32 --batch 2 --seq 16 --warmup 2 --eval-batches 2 --sample-tokens 20 --seed 7"
# refuses NAME PATTERN ARGS...: exit 2, exactly one line on stderr, and the line says what PATTERN (a grep -E) demands.
refuses() {
    case_name=$1 case_pattern=$2
    shift 2
    run "$@"
    refused "$case_name" "$case_pattern"
}
# shard FILE MAGIC COUNT TOKEN...: a llm.c shard of those 16-bit tokens, repeated 100 times.
int32() { printf "\\$(printf %03o $(($1 & 255)))\\$(printf %03o $(($1 >> 8 & 255)))\\$(printf %03o $(($1 >> 16 & 255)))\\$(printf %03o $(($1 >> 24 & 255)))"; }
shard() {
    file=$1 magic=$2 count=$3
    shift 3
    { int32 "$magic"; int32 1; int32 "$count"; dd if=/dev/zero bs=4 count=253 2>/dev/null; } >"$file"
    for token in "$@"; do printf "\\$(printf %03o $((token & 255)))\\$(printf %03o $((token >> 8 & 255)))"; done >"$work/tokens"
    i=0
    while [ $i -lt 100 ]; do cat "$work/tokens"; i=$((i + 1)); done >>"$file"
}
# Checksums of a checkpoint; of one that is not there its own name, which equals nothing.
hashes() { if [ -d "$1" ]; then (cd "$1" && cksum model.safetensors optimizer.safetensors | cut -d ' ' -f 1,2); else echo "$1"; fi; }

# ---- a text to train on ----
make_text 200
: >"$work/empty.txt"

# ---- flags ----
run --help
check "--help: exit code" [ "$status" -eq 0 ]
check "--help: lists the flags" grep -q -- '--tokens-per-step' "$work/out"
run --version
check "--version" grep -q '^train_gpt2 ' "$work/out"
"$program" --help >/dev/full 2>"$work/err"
check "--help on a full disk: exit code" [ $? -eq 1 ]
refuses "unknown flag" 'nosuch' --nosuch 1
refuses "near miss" 'did you mean.*--batch' --bach 4
refuses "malformed number" 'batch.*12x' --batch 12x
refuses "out of range" 'batch' --batch 0
refuses "missing value" 'seq' --seq
refuses "a size that there is not" "'d85': no such file.* d84," --model d85
refuses "not a choice" 'precision.*bf16' --precision fp17
refuses "unknown model" 'd13' --model d13
refuses "a name of Hugging Face" "^error: --model 'gpt2-xl': .*; hint: hf download openai-community/gpt2-xl --local-dir gpt2-xl .*; --model d48 is a new one" --model gpt2-xl
refuses "its address there" "^error: --model 'openai-community/gpt2': .*; hint: hf download openai-community/gpt2 --local-dir gpt2 .*; --model d12 is a new one" --model openai-community/gpt2
refuses "a size in capitals" "^error: --model 'D12': no such file or directory; hint: --model d12$" --model D12
refuses "a size by its parameters" "^error: --model '124M': .*; hint: --model d12 is of that size$" --model 124M
refuses "a path that leads nowhere" "^error: --model 'out/none': no such file or directory$" --model out/none
refuses "indivisible step" 'tokens-per-step' $tiny --train "$work/text.txt" --tokens-per-step 33
refuses "resume without out" 'resume.*out' $tiny --resume
refuses "bad head size" '--channels 36 --heads 3: head size is 12' --model nano --channels 36 --heads 3
refuses "heads that do not divide" '^error: --heads 7: 768 channels .* nearest: 6 heads of 128$' --model d12 --heads 7
refuses "channels that no heads divide" '^error: --channels 100: .*multiples of 8$' --channels 100
refuses "sampling writes nothing" '--prompt and --out' --model "$work" --prompt a --out "$work/none"

# ---- data ----
refuses "no such file" '--train: .*nowhere' $tiny --train "$work/nowhere.txt" --out "$work/unmade/run"
refuses "a word processor's quotes" "^error: --train: .*; hint: these are a word processor's quotes" $tiny --train "“$work/text.txt”"
refuses "a name of the web" '^error: --train: .*; hint: curl -LO brings' $tiny --train https://example.org/a.txt
refuses "a home in quotes" '^error: --train: ~/nowhere.txt: .*; hint: in quotes, .*\$HOME$' $tiny --train '~/nowhere.txt'
refuses "two files" "^error: --train: .*; hint: several files are a pattern, '\*.txt', or a mixture" $tiny --train "$work/nowhere.txt $work/text.txt"
check "no such file: no folder is made" [ ! -e "$work/unmade" ]
refuses "no such validation file" '--val: .*nowhere' $tiny --train "$work/text.txt" --val "$work/nowhere.txt"
elsewhere $tiny
refused "no data" '--train is missing.*data/default.txt'
elsewhere $tiny --resume --out nothing
refused "resume of nothing, without data" '--resume: --out nothing holds no checkpoint.*--train'
check "resume of nothing, without data: no folder is made" [ ! -e "$work/nothing" ]
run --batch 1048576 --seq 2047 --train "$work/text.txt"
check "more than the memory: exit code $status, before its batches are read" [ "$status" -eq 1 ]
check "more than the memory: says what fits" grep -qE 'needs [0-9.]+ GiB, .*hint: --batch [0-9]+' "$work/err"
run --layers 1 --channels 64 --heads 1 --batch 1 --seq 1048576 --tokens-per-step 0 --attention standard --train "$work/text.txt"
check "a T x T matrix beyond the memory" grep -q '; even --batch 1 does not fit; hint: --batch 1 --attention flash$' "$work/err"
run --layers 4096 --channels 131072 --heads 512 --train "$work/text.txt"
check "a model beyond the memory" grep -q 'hint: a smaller model (--model' "$work/err"
refuses "a pattern that the shell has expanded" "unexpected argument 'README.md': .*; hint: a pattern of files stands in quotes" $tiny --train "$work/short.txt" README.md
# before_all: the last run was refused before it printed anything.
before_all() { check "$case_name: found before anything is printed" [ ! -s "$work/out" ]; }
refuses "empty text" '^error: --train: .*/empty.txt: expected a text, found an empty file' $tiny --train "$work/empty.txt"
before_all
refuses "a folder of texts" "^error: --train: .*: expected a file, found a directory; hint: '.*/\\*.txt' names its texts\$" $tiny --train "$work"
before_all
mkfifo "$work/fifo"
refuses "a FIFO" '^error: --val: .*/fifo: expected a file, found a FIFO' $tiny --train "$work/text.txt" --val "$work/fifo"
before_all
printf 'short' >"$work/short.txt"
refuses "short text" '17' $tiny --train "$work/short.txt"
shard "$work/good_000.bin" 20240520 400 1 2 3 50256
shard "$work/magic_000.bin" 20240999 400 1 2 3 4
head -c 1500 "$work/good_000.bin" >"$work/cut_000.bin"
head -c 600 "$work/good_000.bin" >"$work/head_000.bin"
{ int32 20240520; int32 3; tail -c +9 "$work/good_000.bin"; } >"$work/version_000.bin"
shard "$work/none_000.bin" 20240520 0
cp "$work/good_000.bin" "$work/none_001.bin"
shard "$work/model_000.bin" 20240326 400 1 2 3 4
# refuses_shard WHAT PATTERN: WHAT_000.bin, to train and to validate, before anything is printed.
refuses_shard() {
    refuses "shard, $1" "^error: --train: .*/$1_000.bin: $2" $tiny --train "$work/$1_000.bin"
    check "shard, $1: found before anything is printed" [ ! -s "$work/out" ]
    refuses "shard to validate, $1" "^error: --val: .*/$1_000.bin: $2" $tiny --train "$work/good_000.bin" --val "$work/$1_000.bin"
    check "shard to validate, $1: found before anything is printed" [ ! -s "$work/out" ]
}
refuses_shard magic 'magic: expected 20240520 .*, found 20240999: no token shard; hint: the scripts in data/ write shards'
refuses_shard model 'magic: .*, found 20240326: a llm.c model; hint: --model takes it$'
refuses_shard version 'version: expected 1 with magic 20240520, found 3; hint: '
refuses_shard cut 'number of tokens: the header says 400, which takes 1824 bytes, the file has 1500; hint: .*cut short'
refuses_shard head 'header: expected 1024 bytes, the file has 600; hint: it is cut short'
refuses_shard none 'no tokens by its header; hint: the shard is empty'
run $tiny --train "$work/none_*.bin" --steps 2
check "an empty shard beside a full one: exit code $status" [ "$status" -eq 0 ]
rm "$work/none_001.bin"
shard "$work/big_000.bin" 20240520 400 1 2 60000 3
refuses "token beyond the vocabulary" '^error: --train: .*/big_000.bin: token [0-9]*: .*, found 60000; hint: the shard is another tokenizer' $tiny --train "$work/big_*.bin" --steps 2
refuses "token beyond the vocabulary, to validate" '^error: --val: .*/big_000.bin: token .*60000' $tiny --train "$work/good_000.bin" --val "$work/big_000.bin" --steps 2
refuses "text among shards" 'shard.*not|not.*shard' $tiny --train "$work/*"
printf 'caf\303\251 \360\237\230\200 ' >"$work/utf8.txt" && cat "$work/text.txt" >>"$work/utf8.txt"
{ cat "$work/utf8.txt"; printf 'caf\351 au lait\n'; } >"$work/latin1.txt"
at=$(($(wc -c <"$work/utf8.txt") + 3))
run $tiny --train "$work/utf8.txt" --steps 2
check "text in UTF-8: no note" [ "$(grep -c '^note:' "$work/out")" -eq 0 ]
run $tiny --train "$work/latin1.txt" --steps 2
check "text in Latin-1: trains, exit code $status" [ "$status" -eq 0 ]
check "text in Latin-1: file and byte are named" grep -qE "^note: .*/latin1.txt is no UTF-8 from byte $at on: its bytes are taken as they are; hint: iconv" "$work/out"
check "text in Latin-1: once" [ "$(grep -c '^note:' "$work/out")" -eq 1 ]
run $tiny --train "$work/text.txt" --val "$work/latin1.txt" --steps 2
check "text in Latin-1, to validate: named" grep -qE "^note: .*/latin1.txt is no UTF-8 from byte $at on" "$work/out"
run $tiny --train "$work/good_*.bin" --steps 2
check "a good shard trains" [ "$status" -eq 0 ]
check "a good shard trains: without validation data to the end" grep -qE '^done: step 2, train loss [0-9.]+, val loss n/a, ' "$work/out"
cp "$work/good_000.bin" "$work/good_001.bin"
run $tiny --train "$work/good_*.bin" --val "$work/../${work##*/}/good_001.bin" --steps 2
check "a validation shard among those of --train is named" grep -q '^note: .*/good_001.bin is in --val and in --train' "$work/out"
run $tiny --train "$work/good_000.bin" --val "$work/good_001.bin" --steps 2
check "a validation shard of its own: exit code $status" [ "$status" -eq 0 ]
check "a validation shard of its own is not" [ "$(grep -c '^note:' "$work/out")" -eq 0 ]
rm "$work/good_001.bin"
elsewhere $tiny --train "good_*.bin" --prompt a --out unprompted
refused "a prompt without a tokenizer" '--prompt: .*there is no gpt2_tokenizer.bin in \. or above it; hint: --tokenizer'
check "a prompt without a tokenizer: found before the first step" [ ! -e "$work/unprompted" ]
refuses "bad tokenizer" '--tokenizer: .*empty.txt' $tiny --train "$work/text.txt" --tokenizer "$work/empty.txt"

# as_other ARGS...: run, as a user whom folders can keep out.
as_other() {
    if [ "$(id -u)" -ne 0 ]; then run "$@"; else
        setpriv --inh-caps=-all --bounding-set=-all "$program" --device cpu "$@" >"$work/out" 2>"$work/err" </dev/null
        status=$?
    fi
}
if [ "$(id -u)" -ne 0 ] || setpriv --inh-caps=-all --bounding-set=-all true 2>/dev/null; then
    mkdir "$work/p1" "$work/p2"
    cp "$work/text.txt" "$work/p1" && cp "$work/text.txt" "$work/p2" && chmod 000 "$work/p2"
    as_other $tiny --train "$work/p*/*.txt" --steps 2
    refused "a part of the data in a closed folder" '^error: --train: cannot open the directory .*/p2/: Permission denied$'
    as_other $tiny --train "$work/p*/text.txt" --steps 2
    refused "the same, with a name behind the pattern" '^error: --train: cannot look into .*/p2: Permission denied$'
    as_other $tiny --train "$work/p2/text.txt" --steps 2
    refused "a text in a closed folder" '^error: --train: cannot look into .*/p2: Permission denied$'
    as_other $tiny --train "$work/text.txt" --tokenizer "$work/p2/tok" --steps 2
    refused "a tokenizer in a closed folder" '^error: --tokenizer: cannot open .*/p2/tok: Permission denied$'
    chmod 700 "$work/p2"
else
    skipped=$((skipped + 4))
fi

# ---- output folder ----
refuses "out is a file" 'text.txt' $tiny --train "$work/text.txt" --out "$work/text.txt"
refuses "out below a file" 'text.txt' $tiny --train "$work/text.txt" --out "$work/text.txt/run"
if [ "$(id -u)" -ne 0 ]; then
    mkdir "$work/locked" && chmod a-w "$work/locked"
    refuses "out without permission" 'locked' $tiny --train "$work/text.txt" --out "$work/locked/run"
else
    refuses "out in a kernel folder" '/proc' $tiny --train "$work/text.txt" --out /proc/train_gpt2
fi

refuses "out too long" 'longer than 960' $tiny --train "$work/text.txt" --out "$work/$(printf '%0200d/' 1 2 3 4 5)"
check "out too long: nothing is made" [ ! -e "$work/$(printf '%0200d' 1)" ]
refuses "out too long, resumed" 'longer than 960' $tiny --train "$work/text.txt" --resume --out "$(printf '%02000d' 1)"

# ---- a run, its last line, its log ----
long="$tiny --train $work/text.txt --steps 12 --eval-every 6 --tokens-per-step 64"
run $long --out "$work/whole" --save-every 6
check "a run: exit code $status" [ "$status" -eq 0 ]
check "a run: last line" grep -qE '^done: step 12, train loss [0-9.]+, val loss [0-9.]+, [0-9]+ tok/s$' "$work/out"
check "a run: no control codes in a pipe" [ "$(tr -d '\n\t -~' <"$work/out" | LC_ALL=C tr -d '\200-\377' | wc -c)" -eq 0 ]
check "a run: every step is in the log once" [ "$(grep -c '"norm"' "$work/whole/log.jsonl")" -eq 12 ]
run $long --out "$work/again" --save-every 6
check "same seed, same bits" [ "$(hashes "$work/whole/step_00000012")" = "$(hashes "$work/again/step_00000012")" ]

# ---- window and dropout ----
refuses "a negative window" 'window.*-3' $tiny --train "$work/text.txt" --window -3
refuses "dropout of everything" 'dropout.*1' $tiny --train "$work/text.txt" --dropout 1
refuses "dropout that is no number" 'dropout.*much' $tiny --train "$work/text.txt" --dropout much
masked="$tiny --train $work/text.txt --tokens-per-step 64 --steps 8 --window 5 --dropout 0.2"
run $masked --out "$work/masked" --save-every 4
check "window and dropout: exit code $status" [ "$status" -eq 0 ]
check "window and dropout are echoed" grep -qE '^window +.* 5 ' "$work/out"
check "config.json has dropout under its names" [ "$(grep -c 'pdrop": 0.2,' "$work/masked/step_00000008/config.json")" -eq 3 ]
check "config.json has the window" grep -q '"attention_window": 5,' "$work/masked/step_00000008/config.json"
cp -r "$work/masked" "$work/masked_resumed" && rm -rf "$work/masked_resumed/step_00000008"
run $masked --out "$work/masked_resumed" --resume
check "dropout: same bits as the run without a stop" [ "$(hashes "$work/masked/step_00000008")" = "$(hashes "$work/masked_resumed/step_00000008")" ]
run $masked --out "$work/masked_block" --recompute block
check "dropout: same bits when recomputed" [ "$(hashes "$work/masked/step_00000008")" = "$(hashes "$work/masked_block/step_00000008")" ]
run $(echo "$masked" | sed 's/--seed 7/--seed 8/') --out "$work/masked_seed"
check "dropout with another seed: exit code $status" [ "$status" -eq 0 ]
check "dropout: another seed, other weights" [ "$(hashes "$work/masked/step_00000008")" != "$(hashes "$work/masked_seed/step_00000008")" ]
run --model "$work/masked" --eval-only --train "$work/text.txt" --batch 2 --eval-batches 2
check "a model's window comes with its files" grep -qE '^window +.* 5 ' "$work/out"

# ---- resume ----
refuses "a new run beside old checkpoints" 'step_00000012.*resume' $long --out "$work/whole"
cp -r "$work/whole" "$work/resumed" && rm -rf "$work/resumed/step_00000012"
run $long --out "$work/resumed" --save-every 6 --resume
check "resume: exit code $status" [ "$status" -eq 0 ]
check "resume: same bits as the run without a stop" [ "$(hashes "$work/whole/step_00000012")" = "$(hashes "$work/resumed/step_00000012")" ]
check "resume: no step twice in the log" [ "$(grep -c '"norm"' "$work/resumed/log.jsonl")" -eq 12 ]
cp -r "$work/whole" "$work/damaged"
printf X | dd of="$work/damaged/step_00000012/model.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null
run $long --out "$work/damaged" --save-every 6 --resume
check "resume past a damaged checkpoint: exit code $status" [ "$status" -eq 0 ]
check "resume past a damaged checkpoint: says so" grep -q 'step_00000012' "$work/err"
check "resume past a damaged checkpoint: same bits" [ "$(hashes "$work/whole/step_00000012")" = "$(hashes "$work/damaged/step_00000012")" ]
printf X | dd of="$work/damaged/step_00000006/model.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null
refuses "a damaged model" 'model.safetensors' --model "$work/damaged/step_00000006" --prompt a
cp -r "$work/resumed" "$work/whole_too"
run $(echo "$long" | sed 's/--steps 12/--steps 13/') --lr 5e-4 --out "$work/resumed" --resume
check "resume with another learning rate names it" grep -q -- '--lr' "$work/out"
other="--val $work/text.txt --window 3 --batch 1 --seq 8 --steps 14 --lr 1e-5 --warmup 1 --final-lr-fraction 0.3 --schedule linear --momentum 0.9 --muon-polynomial jordan --weight-decay 0.3 --beta1 0.8 --beta2 0.8 --eps 1e-6 --dropout 0.1 --clip 3 --seed 8 --attention standard"
run --train "$work/text.txt" $other --eval-batches 2 --sample-tokens 0 --out "$work/resumed" --resume
missing=
for flag in $(echo "$other" | tr ' ' '\n' | grep ^--); do grep -q "^note: $flag was .* in the checkpoint" "$work/out" || missing="$missing $flag"; done
check "resume with other flags: each is named${missing:+, but for$missing}" eval '[ "$status" = 0 ] && [ -z "$missing" ]'
check "resume with other windows: what becomes of the order" [ "$(grep -cE '^note: the order of the data goes on at window [0-9]+ of the new --(seq|seed): ' "$work/out")" -eq 2 ]
run $tiny --train "$work/text.txt" --steps 2 --schedule constant --final-lr-fraction 0.5
check "--final-lr-fraction of a constant rate is named" grep -q '^note: --final-lr-fraction does nothing: --schedule constant stays at --lr$' "$work/out"
run $tiny --train "$work/text.txt" --steps 2 --optimizer adamw
check "a rate of the other optimizer is named" grep -q "^note: --lr 0.012 is the recipe's, for muon, and --optimizer is adamw; hint: --lr, about a fifth of that$" "$work/out"
run $tiny --train "$work/text.txt" --steps 2 --recipe llm.c --optimizer muon
check "a rate of the other optimizer is named, the other way round" grep -q "^note: --lr 0.0006 is the recipe's, for adamw, and --optimizer is muon; hint: --lr, about five times that$" "$work/out"
run $tiny --train "$work/text.txt" --steps 2 --optimizer adamw --lr 1e-3
check "a rate that was chosen is not" eval '[ "$status" = 0 ] && ! grep -q "^note: --lr" "$work/out"'
refuses "resume with another model" 'layers' --model d12 --train "$work/text.txt" --batch 2 --seq 16 --tokens-per-step 64 --steps 12 --out "$work/whole" --resume

# all that the flags leave open is the checkpoint's: data, batch, optimizer, schedule, how often it saves
open="$tiny --train $work/text.txt --val $work/text.txt --steps 8 --tokens-per-step 64 --save-every 3 --eval-every 2 --optimizer adamw --lr 1.1e-3 --schedule linear --dropout 0.1 --clip 0.7 --keep-best"
run $open --out "$work/kept"
cp -r "$work/kept" "$work/open" && rm -rf "$work/open"/step_0000000[4-8]
elsewhere --resume --out open
check "resume with no more flags: exit code $status" [ "$status" -eq 0 ]
check "resume with no more flags: the bits of the run without a stop" [ "$(hashes "$work/kept/step_00000008")" = "$(hashes "$work/open/step_00000008")" ]
check "resume with no more flags: saves as often" [ "$(ls "$work/open")" = "$(ls "$work/kept")" ]
check "resume with no more flags: nothing has changed" [ "$(grep -c '^note: --' "$work/out")" -eq 0 ]
check "resume with no more flags: says whose they are" grep -qE "^recipe +the checkpoint's, for what the flags leave open$" "$work/out"
cp -r "$work/kept" "$work/open_ranks" && rm -rf "$work/open_ranks"/step_0000000[4-8]
elsewhere --resume --out open_ranks --gpus 2
check "resume with no more flags, on two ranks: exit code $status" [ "$status" -eq 0 ]
check "resume with no more flags, on two ranks: that alone has changed" [ "$(grep '^note: --' "$work/out" | grep -v 'is slow')" = "note: --gpus was 1 in the checkpoint, the run goes on with 2" ]
elsewhere --resume --out open --steps 9 --recipe cpu-small --seq 16 --optimizer adamw
check "resume with a recipe: its own flags" grep -q '^note: --batch was 2 in the checkpoint, the run goes on with 24$' "$work/out"
check "resume with a recipe: others are the checkpoint's" [ "$(grep -cE '^note: --(train|schedule|clip|seed) was ' "$work/out")" -eq 0 ]
cp -r "$work/kept" "$work/more" && cp -r "$work/whole/step_00000012" "$work/words"
elsewhere --resume --out more --steps 9 --tokens-per-step 96 --keep 4
check "resume with flags that suit the run, and not the recipe: exit code $status" [ "$status" -eq 0 ]
elsewhere --resume --out more --steps 1
check "resume to fewer steps than its warm-up" grep -q '^finished: ' "$work/out"
cp "$work/text.txt" "$work/moved.txt"
elsewhere --resume --out more --steps 10 --train moved.txt
check "resume with the same text, moved: exit code $status" [ "$status" -eq 0 ]
check "resume with the same text, moved: its order goes on" [ "$(grep -c '^note: the order of the data' "$work/out")" -eq 0 ]
run $tiny --train "$work/text.txt" --steps 2 --tokenizer "$work/words" --out "$work/named"
rm -r "$work/words"
elsewhere --resume --out named --steps 3
check "resume, and the tokenizer's file is gone: exit code $status" [ "$status" -eq 0 ]
check "resume, and the tokenizer's file is gone: it is the checkpoint's" [ "$(grep -c '^note: --tokenizer' "$work/out")" -eq 0 ]
elsewhere --resume --out named --steps 4 --val nowhere.txt
refused "resume with data that is not there" '^error: --val: nowhere.txt: '
odd="$work/$(printf 'no\377utf8').txt"
cp "$work/text.txt" "$odd"
run $tiny --train "$odd" --steps 2 --out "$work/odd"
elsewhere --resume --out odd --steps 3
refused "resume, and the name of the data is not known" "^error: --train is missing, and cannot be read from the checkpoint: its name is no UTF-8, or too long; hint: --train FILE$"
mv "$work/text.txt" "$work/text.elsewhere"
elsewhere --resume --out whole --steps 13
refused "resume, and the data is gone" "^error: --resume: the run's --train: $work/text.txt: .*; hint: it may be meant from the folder that the run was started in; --train PATH$"
mv "$work/text.elsewhere" "$work/text.txt"
mkdir "$work/data" && cp "$work/text.txt" "$work/data/default.txt"
elsewhere --model whole --steps 1 --batch 2 --eval-batches 1 --sample-tokens 0
check "a model and no data: what is trained, and what else might be meant" grep -q '^note: --model without --train: this model is trained on data/default.txt; hint: --prompt TEXT samples from it, ' "$work/out"
elsewhere $tiny --prompt a --steps 2
check "a prompt for a new model: said" grep -q '^note: --prompt and --model nano: a new model is trained, on data/default.txt; hint: --model DIR samples ' "$work/out"
rm -r "$work/data"
run --resume --out "$work/whole_too" --train "$work/text.txt" --steps 13
check "resume without the size: exit code $status" [ "$status" -eq 0 ]
check "resume without the size: says what of" grep -qE '^resumed +.*/step_00000012, step 12$' "$work/out"
check "resume without the size: the log says what of" grep -q '"model": "[^"]*/step_00000012"' "$work/whole_too/log.jsonl"
check "resume: the size is the checkpoint's" [ "$(grep -cE '^note: --(model|layers|heads|channels) ' "$work/out")" -eq 0 ]
run $tiny --resume --out "$work/fresh" --train "$work/text.txt" --steps 2
check "resume of nothing says so" grep -qE '^resumed +nothing: .*/fresh holds no checkpoint' "$work/out"
refuses "a file of a model" 'expected a model, found a file of one; hint: --model .*/step_00000012$' --model "$work/whole/step_00000012/model.safetensors" --prompt a
refuses "another file of a model" '--model: .*config.json: .*hint: a model is a directory' --model "$work/whole/step_00000012/config.json" --prompt a
cp -r "$work/whole/step_00000012" "$work/received" && rm "$work/received/trainer_state.json"
bytes=$(wc -c <"$work/received/model.safetensors")
head -c 5000 "$work/whole/step_00000012/model.safetensors" >"$work/received/model.safetensors"
refuses "a model cut short" "^error: --model: .*/received/model.safetensors: cut short: expected $((bytes)) bytes by its header, found 5000; hint: copy it again\$" --model "$work/received" --prompt a
head -c 500 "$work/whole/step_00000012/model.safetensors" >"$work/received/model.safetensors"
refuses "a model cut short in its header" '^error: --model: .*/model.safetensors: cut short: expected at least [0-9]+ bytes, 8 and its header, found 500; hint: ' --model "$work/received" --prompt a
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 500\n' >"$work/received/model.safetensors"
refuses "a pointer in place of a model" '^error: --model: .*/model.safetensors: expected tensors, found a pointer of git-lfs to them; hint: git lfs pull$' --model "$work/received" --prompt a
mv "$work/received/model.safetensors" "$work/received/pytorch_model.bin"
refuses "a pickled model" 'expected model.safetensors .*found neither; hint: .*save_pretrained makes it of pytorch_model.bin$' --model "$work/received" --prompt a
refuses "a short file of a model" '--model: .*config.json: .*hint: a model is a directory' --model "$work/whole/step_00000012/config.json" --prompt a

# ---- --resume and --model ----
# began_with DIR STEP: the --model that a checkpoint keeps.
began_with() { sed -n 's/.*"model": *"\([^"]*\)".*/\1/p' "$work/$1/step_0000000$2/trainer_state.json"; }
unread() { grep -c '^note: --model .* is not read: ' "$work/out"; }
more="--train $work/text.txt --batch 2 --eval-batches 2 --sample-tokens 0"
cp -r "$work/whole/step_00000012" "$work/base"
run --model "$work/base" $more --steps 2 --out "$work/fine"
run --resume --out "$work/fine" --steps 3
check "resume without --model: the checkpoint keeps it" [ "$(began_with fine 3)" = "$work/base" ]
run --model "$work/base" $more --steps 4 --out "$work/fine" --resume
check "resume with the same --model: not a word, exit code $status" [ "$status$(unread)" = 00 ]
(cd "$work" && "$here" --device cpu --model base/ $more --steps 5 --out fine --resume >out 2>err </dev/null)
check "resume with the same --model by another name: not a word" [ "$(unread)" -eq 0 ]
check "resume with the same --model by another name: the checkpoint keeps the first" [ "$(began_with fine 5)" = "$work/base" ]
run --model "$work/fine" $more --steps 6 --out "$work/fine" --resume
check "resume with the run itself as --model: not a word, exit code $status" [ "$status$(unread)" = 00 ]
run --model "$work/again" $more --steps 7 --out "$work/fine" --resume
check "resume with another --model: said, exit code $status" [ "$status$(unread)" = 01 ]
check "resume with another --model: the one that the run began with" grep -q "^note: --model $work/again is not read: the weights are the checkpoint's, of a run that began with --model $work/base; hint: " "$work/out"
check "resume with another --model: the checkpoint keeps the first" [ "$(began_with fine 7)" = "$work/base" ]
refuses "resume with a --model that there is not" "^error: --model '$work/nowhere': no such file or directory" --model "$work/nowhere" $more --steps 8 --out "$work/fine" --resume
refuses "resume with a --model that is none" '^error: --model: .*/text.txt' --model "$work/text.txt" $more --steps 8 --out "$work/fine" --resume
run --model nano --layers 1 --heads 2 --channels 32 --seq 16 $more --steps 1 --out "$work/one_layer"
refuses "resume with a --model of another size" '^error: the flags ask for 1 layers, 2 heads, 32 channels, .*/fine/step_00000007 has 2, 2, 32; hint: ' --model "$work/one_layer" $more --steps 8 --out "$work/fine" --resume
rm -r "$work/base"
run --model "$work/base" $more --steps 8 --out "$work/fine" --resume
check "resume, and the --model of its beginning is gone: not a word, exit code $status" [ "$status$(unread)" = 00 ]

cp -r "$work/whole" "$work/finished" && mkdir "$work/finished/.tmp-step_00000011-1"
lines=$(wc -l <"$work/finished/log.jsonl")
run $long --out "$work/finished" --resume
check "resume of a finished run: exit code $status" [ "$status" -eq 0 ]
check "resume of a finished run: one line" [ "$(cat "$work/out" "$work/err" | wc -l)" -eq 1 ]
check "resume of a finished run: says so" grep -qE '^finished: .*/step_00000012 has 12 steps, --steps is 12; hint: more --steps' "$work/out"
check "resume of a finished run: no header in the log" [ "$(wc -l <"$work/finished/log.jsonl")" -eq "$lines" ]
check "resume of a finished run: leftovers go" [ ! -e "$work/finished/.tmp-step_00000011-1" ]
run $(echo "$long" | sed 's/--steps 12/--steps 10/') --out "$work/finished" --resume
check "resume past the end: exit code $status" [ "$status" -eq 0 ]
run $long --out "$work/whole" --resume
check "resume past the end: the checkpoint stays" grep -q '"tokens_seen": *768' "$work/whole/step_00000012/trainer_state.json"
check "a checkpoint counts its tokens" grep -q '"tokens_seen": *768' "$work/resumed/step_00000012/trainer_state.json"

# ---- what must not be lost ----
cp "$work/good_000.bin" "$work/late_000.bin"
printf '\377\377' | dd of="$work/late_000.bin" bs=1 seek=1600 conv=notrunc 2>/dev/null
run --model nano --layers 1 --heads 2 --channels 32 --batch 1 --seq 16 --steps 500 --sample-tokens 0 --train "$work/late_*.bin" --out "$work/late"
check "a bad token in mid-run: exit code $status" [ "$status" -eq 2 ]
check "a bad token in mid-run: what was learned is saved" has_checkpoint "$work/late"
cp "$work/good_000.bin" "$work/val_000.bin"
refuses "bad validation data, before the first step" 'val_000.bin.*50256' $tiny --train "$work/text.txt" --val "$work/val_*.bin" --steps 100000
for words in --version --help "--model $work/whole --prompt line --sample-tokens 4" "--model $work/whole --memory" "--model $work/whole --train $work/text.txt --eval-only --batch 2 --eval-batches 2"; do
    "$program" --device cpu $words >&- 2>"$work/err" </dev/null
    status=$?
    : >"$work/out"
    check "${words##*--} to a closed stdout: exit code $status" [ "$status" -eq 1 ]
    check "${words##*--} to a closed stdout: says so" eval 'tail -n 1 "$work/err" | grep -qx "error: the output could not be written: Bad file descriptor"'
done
"$program" --device cpu --model "$work/whole" --prompt-file - >"$work/out" 2>"$work/err" <&-
status=$?
refused "a prompt from a closed stdin" '^error: --prompt-file: stdin: expected text, found it closed$'
"$program" --device cpu --model "$work/whole" --prompt-file - >"$work/out" 2>"$work/err" <"$work"
status=$?
refused "a prompt from a folder as stdin" '^error: --prompt-file: cannot read stdin: Is a directory$'
"$program" --device cpu --model "$work/whole" --chat >"$work/out" 2>"$work/err" <&-
status=$?
refused "a chat on a closed stdin" '^error: --chat: stdin: expected text, found it closed$'
"$program" --device cpu --model "$work/whole" --chat >"$work/out" 2>"$work/err" <"$work"
status=$?
refused "a chat on a folder as stdin" '^error: --chat: cannot read stdin: Is a directory$'
"$program" --device cpu $long --out "$work/closed" >&- 2>&-
check "closed output: the log stays a log" [ "$(grep -cv '^{' "$work/closed/log.jsonl")" -eq 0 ]
"$program" --device cpu $long --out "$work/piped" 2>/dev/null | head -n 1 >/dev/null
check "a reader that leaves does not end the run" [ -d "$work/piped/step_00000012" ]

# The output goes through pipes: the limit is of files, 4 or 8 KiB by the shell: the log's first lines fit, a checkpoint does not.
{ (ulimit -f 8; "$program" --device cpu $tiny --train "$work/text.txt" --steps 60 --save-every 30 --out "$work/limited" 2>&1; echo "status $?") | cat; } >"$work/out" </dev/null
check "a file-size limit: a failure, not a signal" grep -qx 'status 1' "$work/out"
check "a file-size limit: says so" grep -q '^error: checkpoint of step 60 not saved: .*File too large' "$work/out"
check "a file-size limit: nothing is half-written" [ "$(ls -A "$work/limited")" = "$(printf 'log.jsonl\nrun.lock')" ]
check "a file-size limit: the log has its beginning" has_steps 1 "$work/limited/log.jsonl"
check "a file-size limit: every line of the log is whole" [ "$(grep -cv '^{.*}$' "$work/limited/log.jsonl")" -eq 0 ]

# ---- sampling, evaluation, memory ----
run --model "$work/whole" --prompt "line 1" --sample-tokens 12
check "sample from a run's folder: exit code $status" [ "$status" -eq 0 ]
elsewhere --model whole
refused "a model alone" '^error: --train is missing, .*; hint: --train FILE, or --prompt TEXT for samples alone$'
elsewhere --prompt hi
refused "a prompt alone" '^error: --train is missing, .*; hint: --train FILE, or --model DIR for samples of a trained model$'
elsewhere --model d12 --memory --seq 1024 --train 'missing/*.bin'
check "a size: parameters as others count them" grep -qE '^model +d12: .* 124\.4 M parameters$' "$work/out"
check "--memory before the shards are there: why there is no tokenizer" grep -qE '^tokenizer +none: samples are token ids; there is no missing/\*.bin yet$' "$work/out"
elsewhere --train 'missing/*.bin' --prompt hi
refused "a prompt for shards that are not there" '^error: --prompt: there is no tokenizer to encode it: there is no missing/\*.bin yet; hint: --tokenizer PATH$'
refuses "a longer context than the model's" '--seq 32: .* context of 16 tokens; hint: --seq 16 at most$' --model "$work/whole" --train "$work/text.txt" --seq 32
refuses "a folder without a model" 'expected config.json or step_\* directories, found neither; hint: --model [^ ]*/[^ /]*, or a checkpoint' --model "$work" --prompt a
cp -r "$work/whole/step_00000012" "$work/swapped"
printf 'zzzz' | dd of="$work/swapped/tokenizer.bin" bs=1 seek=1100 conv=notrunc 2>/dev/null
refuses "a changed tokenizer" 'tokenizer.bin' --model "$work/swapped" --prompt a
refuses "evaluation of new weights" 'eval-only.*model' --model nano --train "$work/text.txt" --eval-only
run --model "$work/whole/step_00000012" --prompt "line 1" --sample-tokens 12
check "sample from a checkpoint: exit code $status" [ "$status" -eq 0 ]
cp "$work/out" "$work/first"
run --model "$work/whole/step_00000012" --prompt "line 1" --sample-tokens 12
check "the same seed draws the same text" cmp -s "$work/out" "$work/first"
make_items 20
run --model "$work/whole" --eval-only --hellaswag "$work/items.bin"
check "--hellaswag alone: exit code $status" [ "$status" -eq 0 ]
check "--hellaswag alone: what is cut is said" grep -qE '^hellaswag +20 items, 80 endings: .*/items.bin$' "$work/out"
check "--hellaswag alone: the score is the last line" eval 'tail -n 1 "$work/out" | grep -qE "^step 12 \| hellaswag acc_norm 0\.[0-9]{4} \| acc 0\.[0-9]{4} \| 20 items in [0-9.]+ s$"'
run $tiny --train "$work/text.txt" --eval-every 3 --hellaswag "$work/items.bin" --out "$work/scored"
check "--hellaswag in training: with each validation" [ "$(grep -c 'hellaswag acc_norm' "$work/out")" -eq "$(grep -c '| val loss' "$work/out")" ]
check "--hellaswag in training: in the log" [ "$(grep -cE '^\{"step": *[0-9]+, *"acc_norm": *[0-9.]+, *"acc": *[0-9.]+, *"items": *20\}$' "$work/scored/log.jsonl")" -eq "$(grep -c '"val_loss"' "$work/scored/log.jsonl")" ]
refuses "items in other tokens" '^error: --hellaswag: .*/text.txt: expected magic 20240522 .*; hint: data/hellaswag.py --source FILE makes it of lines of JSON$' $tiny --train "$work/text.txt" --hellaswag "$work/text.txt"
printf '{"ctx": "a", "endings": ["b", "c", "d", "e"], "label": 0}\n' >"$work/items.jsonl"
refuses "items that are lines of JSON" '^error: --hellaswag: .*/items.jsonl: expected a header of 1024 bytes, the file has 58; hint: data/hellaswag.py --source FILE makes it of lines of JSON$' $tiny --train "$work/text.txt" --hellaswag "$work/items.jsonl"
refuses "items beside a prompt" '^error: --prompt and --hellaswag: ' --model "$work/whole" --prompt a --hellaswag "$work/items.bin"
refuses "items of shared sequences" '^error: --hellaswag and --context-gpus: ' $tiny --train "$work/text.txt" --hellaswag "$work/items.bin" --context-gpus 2 --gpus 2
run --model "$work/whole" --export "$work/whole.gguf" --export-type f16
check "an export: exit code $status" [ "$status" -eq 0 ]
check "an export: says what it wrote" grep -q "^exported: $work/whole.gguf, f16, .*; to open it: llama-cli" "$work/out"
check "an export: the files are there" eval '[ -s "$work/whole.gguf" ] && [ -s "$work/whole.Modelfile" ]'
mkdir "$work/llmc" # not among the shards
run --model "$work/whole" --export "$work/llmc/whole.bin"
check "an export in fp32 for llm.c: what opens it" grep -q "^exported: $work/llmc/whole.bin, f32, .*; to open it: llm.c's train_gpt2cu -e PATH, of its make PRECISION=FP32$" "$work/out"
run --model "$work/whole" --export "$work/llmc/half.bin" --export-type bf16
check "an export in bf16 for llm.c: what opens it" grep -q "^exported: $work/llmc/half.bin, bf16, .*; to open it: llm.c's train_gpt2cu -e PATH$" "$work/out"
run --model "$work/whole" --prompt "line 1" --sample-tokens 12 --temperature 0
sed '1,/^---/d' "$work/out" >"$work/first"
run --model "$work/llmc/whole.bin" --prompt "line 1" --sample-tokens 12 --temperature 0
check "an exported .bin samples with its tokenizer beside it" [ "$(sed '1,/^---/d' "$work/out")" = "$(cat "$work/first")" ]
refuses "an export over a device" '^error: --export: /dev/null is there already \(a device\), and nothing is replaced; hint: another name$' --model "$work/whole" --export /dev/null
refuses "an export over a file" '^error: --export: .*/whole.bin is there already \(a file\)' --model "$work/whole" --export "$work/llmc/whole.bin"
check "an export: nothing to note" eval '! grep -q "^note: " "$work/out"'
run --model nano --export "$work/random.gguf"
check "an export of new weights: said, exit code $status" [ "$status$(grep -c '^note: --model nano is a size, .* random; hint: --model PATH$' "$work/out")" = 01 ]
refuses "an export that trains" '^error: --export and --train: ' --model "$work/whole" --export "$work/x" --train "$work/text.txt"
refuses "an export in no folder" "^error: --export: cannot write in $work/none: no such directory; hint: mkdir -p '$work/none'\$" --model "$work/whole" --export "$work/none/x.bin"
check "an export in no folder: nothing is printed or made" eval '[ ! -s "$work/out" ] && [ ! -e "$work/none" ]'
refuses "a trace in no folder" "^error: --profile-trace: cannot write in $work/none: no such directory; hint: mkdir -p '$work/none'\$" $tiny --train "$work/text.txt" --profile-trace "$work/none/x"
refuses "an export of no model" '^error: --export: which model\? hint: --model PATH$' --export "$work/x"
refuses "a type of no export" '^error: --export-type: of what\? hint: --export PATH$' --model "$work/whole" --prompt a --export-type f16
(ulimit -f 8; "$program" --device cpu --model "$work/whole" --export "$work/large" >"$work/out" 2>"$work/err" </dev/null; echo "status $?" >>"$work/err")
check "an export past a limit: exit code 1" grep -qx 'status 1' "$work/err"
check "an export past a limit: leaves nothing" [ -z "$(ls -A "$work" | grep large)" ]
run --model "$work/whole/step_00000012" --train "$work/text.txt" --eval-only --batch 2 --seq 16 --eval-batches 2
check "--eval-only: exit code $status" [ "$status" -eq 0 ]
log_loss=$(sed -n 's/.*"step": *12, *"val_loss": *\([0-9.]*\).*/\1/p' "$work/whole/log.jsonl")
check "--eval-only: the loss at the run's end, as the last line" [ "$(tail -n 1 "$work/out")" = "step 12 | val loss $(printf %.6f "$log_loss")" ]
check "--eval-only: perplexity and bits a byte before it" grep -qx "step 12 | perplexity $(awk "BEGIN { printf \"%.4f\", exp($log_loss) }") | $(awk "BEGIN { printf \"%.6f\", $log_loss / log(2) }") bits a byte" "$work/out"
check "--eval-only: says what is evaluated" grep -qE '^evaluation +2 batches of 2 x 16 tokens = 64 tokens$' "$work/out"
run --model "$work/whole" --eval-only
check "--eval-only without more flags: names the run's data" grep -q "^validation .*/text.txt: 1 text file" "$work/out"
check "--eval-only without more flags: the loss that the run printed" [ "$(tail -n 1 "$work/out")" = "step 12 | val loss $(printf %.6f "$log_loss")" ]
check "--eval-only without more flags: the run's batches" grep -qE '^evaluation +2 batches of 2 x 16 tokens = 64 tokens$' "$work/out"
mv "$work/text.txt" "$work/moved.txt"
refuses "--eval-only of a run whose data are gone" "^error: --eval-only: the run's --train: .*/text.txt: no such file" --model "$work/whole" --eval-only
mv "$work/moved.txt" "$work/text.txt"
run --model "$work/whole" --train "$work/text.txt" --eval-only --batch 3 --eval-batches 1
check "--eval-only: flags come before the run's" grep -qE '^evaluation +1 batches of 3 x 16 tokens = 48 tokens$' "$work/out"
check "--eval-only of data read once: no note" [ "$(grep -c '^note: --eval-batches' "$work/out")" -eq 0 ]
check "--eval-only: says nothing of training" [ "$(grep -cE '^(recipe|batch|run|optimizer|schedule|samples|output|peak|done)\b' "$work/out")" -eq 0 ]
head -c 400 "$work/text.txt" >"$work/short.txt"
windows=24 # of 16 tokens and a last target
run --model "$work/whole" --val "$work/short.txt" --eval-only --batch 1 --seq 16 --eval-batches $windows
check "--eval-only of each window once: no note" [ "$(grep -c '^note: --eval-batches' "$work/out")" -eq 0 ]
run --model "$work/whole" --val "$work/short.txt" --eval-only --batch 1 --seq 16 --eval-batches $((2 * windows))
check "--eval-only of the same again: a note" grep -q "^note: --eval-batches $((2 * windows)): .* $windows windows of 16 tokens, are read 2 times; hint: --eval-batches $windows " "$work/out"
run --model "$work/whole" --val "$work/short.txt" --eval-only --batch $((windows - 4)) --seq 16 --eval-batches 9
check "--eval-only of the same again: how many batches have all, not once" grep -q '^note: --eval-batches 9: .*; hint: --eval-batches 2 reads all$' "$work/out"
run --model "$work/whole" --val "$work/short.txt" --eval-only --memory
check "--memory of an evaluation: no samples are drawn" [ "$(grep -c 'while they are drawn' "$work/out")" -eq 0 ]
run --model d48 --memory --seq 1048576 --batch 1
check "--memory of a huge model allocates nothing: exit code $status" [ "$status" -eq 0 ]
check "--memory names tensors" grep -q 'qkv' "$work/out"
run --layers 64 --channels 131072 --heads 512 --memory --attention standard --seq 67108864 --batch 1
check "--memory beyond 2^63 bytes is not wrapped" grep -qE '^  probs +activations +[0-9]{6,}\.. TiB' "$work/out"
check "--memory beyond 2^63 bytes fits nowhere" grep -qE 'largest that fits +none, not even --batch 1$' "$work/out"
refuses "no GPU, or a device that cannot be" 'cuda|device|bf16' --device cuda --precision bf16 --train "$work/nowhere"

# ---- a signal ends the run after the step, saved ----
"$program" --device cpu $tiny --train "$work/text.txt" --steps 100000000 --eval-every 0 --out "$work/signal" >"$work/out" 2>"$work/err" &
child=$!
await has_steps 3 "$work/signal/log.jsonl"
refuses "two runs in one folder" 'another run' $tiny --train "$work/text.txt" --steps 5 --out "$work/signal"
run $tiny --memory --resume --out "$work/signal"
check "--memory beside a run: exit code $status" [ "$status" -eq 0 ]
kill -TERM $child
ended
check "SIGTERM: exit code $status" [ "$status" -eq 0 ]
check "SIGTERM: a checkpoint" has_checkpoint "$work/signal"
check "SIGTERM: a last line" grep -q '^done: step' "$work/out"

# ---- a kill loses nothing of the newest checkpoint ----
steady="$tiny --train $work/text.txt --schedule constant --eval-every 0 --save-every 20 --keep 2"
"$program" --device cpu $steady --steps 100000000 --out "$work/killed" --resume >"$work/out" 2>"$work/err" &
child=$!
await has_checkpoint "$work/killed"
refuses "a folder in use, before its checkpoints are looked at" 'another run' --model d12 --train "$work/text.txt" --out "$work/killed" --resume
kill -KILL $child
ended
newest=$(ls -d "$work"/killed/step_* | tail -n 1)
last=$(expr "${newest##*step_}" + 7)
run $steady --steps "$last" --out "$work/killed" --resume
check "kill -9: exit code $status" [ "$status" -eq 0 ]
check "kill -9: resumed at ${newest##*/}" grep -qE "^resumed +$newest, step" "$work/out"
check "kill -9: every step is in the log once" [ "$(grep -c '"norm"' "$work/killed/log.jsonl")" -eq "$last" ]
run $steady --steps "$last" --out "$work/unkilled"
saved=$(printf 'step_%08d' "$last")
check "kill -9: same bits as the run without it" [ "$(hashes "$work/unkilled/$saved")" = "$(hashes "$work/killed/$saved")" ]

finish
