#!/bin/sh
# Data from several sources, as a user names them: a mixture of globs is refused in one line or trained on, says what it
# reads, resumes to the bit, and is the same for any number of ranks. Usage: dev/test/run/test_mixtures.sh [PROGRAM], from
# the repository root.
set -u
program=$(realpath "${1:-./train_gpt2}")
test=mixtures
. dev/test/user.sh

# A mixture of names without folders: its text is short enough to be read here.
cd "$work" || exit 1
make_text 100
mv text.txt a.txt
i=0
while [ $i -lt 300 ]; do echo "$i: THE LAZY DOG SLEEPS, $((i * i)) TIMES"; i=$((i + 1)); done >b_1.txt
sed 's/DOG/CAT/' b_1.txt >b_2.txt
tiny="--model nano --layers 1 --heads 2 --channels 16 --batch 2 --seq 16 --warmup 0 --eval-batches 2 --eval-every 4 --sample-tokens 0 --seed 7 --steps 8 --tokens-per-step 128"
mixture='a.txt:0.7,b_*.txt:0.3'
hashes() { if [ -d "$1" ]; then (cd "$1" && cksum model.safetensors optimizer.safetensors | cut -d ' ' -f 1,2); else echo "$1"; fi; }

# ---- refused ----
# refuses PATTERN MIXTURE
refuses() {
    run $tiny --train "$2"
    refused "--train $2" "^error: --train: $1"
}
refuses "'a.txt': the weight is '0'; expected a number from 1e-12 to 1e12" 'a.txt:0,b_1.txt:1'
refuses "'b_1.txt': expected GLOB:WEIGHT; hint: " 'a.txt:1,b_1.txt'
refuses 'none.txt: no such file' 'a.txt:1,none.txt:1'
refuses 'a.txt,b_1.txt: no such file.*a mixture gives each glob a weight' 'a.txt,b_1.txt'

# ---- trained on ----
run $tiny --train "$mixture" --save-every 4 --out whole
check "a mixture: exit code $status" [ "$status" -eq 0 ]
check "a mixture: its sources" grep -qE '^ +30 % b_\*\.txt: 2 text files, [0-9,]+ tokens \(bytes, first nine tenths\), read 0\.0[0-9]+ times$' out
check "a mixture: validates" grep -qE '^step 8/8 \| val loss [0-9]' out
grep '"sources":' whole/log.jsonl >sources
check "a mixture: logged with each validation" [ "$(cut -d ' ' -f 2 sources)" = "$(printf '4,\n8,')" ]
# 64 windows of 16 tokens: 44 or 45, and 19 or 20.
check "a mixture: what was read of each source" grep -qE '"step": 8, "sources": \[\{"glob": "a.txt", "tokens": 7(04|20), "epochs": 0\.1[0-9]+\}, \{"glob": "b_\*.txt", "tokens": 3(04|20),' sources
cp -r whole resumed && rm -r resumed/step_00000008
run $tiny --train "$mixture" --out resumed --resume
check "a mixture: resumes to the bit" [ "$(hashes whole/step_00000008)" = "$(hashes resumed/step_00000008)" ]
check "a mixture: resumed without a word on data" [ "$(grep -c '^note:' out)" -eq 0 ]
# Shards are not split for validation, and neither is a mixture with them, whichever comes first.
: >shard.bin
for pair in shard.bin:1,a.txt:1 a.txt:1,shard.bin:1; do
    run $tiny --train $pair
    refused "--train $pair" '^error: --eval-every: --train names token shards, which are not split; hint: --val GLOB'
done
run $tiny --train "$mixture" --out of_2 --gpus 2 --reproducible 4
run $tiny --train "$mixture" --out of_1 --reproducible 4
check "a mixture: the same bits on 2 ranks" [ "$(hashes of_1/step_00000008)" = "$(hashes of_2/step_00000008)" ]
# Four steps of 128 tokens, four of 64: 48 windows.
rm -r resumed/step_00000008
run $(echo "$tiny" | sed 's/--tokens-per-step 128/--tokens-per-step 64/') --train "$mixture" --out resumed --resume
check "resumed with smaller steps: tokens of the run" grep -q '^run  *8 steps, 768 tokens$' out
said=$(sed -n 's/.* 70 % a\.txt: .* read \([0-9.]*\) times$/\1/p' out)
check "resumed with smaller steps: how often a source is read, $said" grep -qE "\"step\": 8, \"sources\": .*\"glob\": \"a.txt\", \"tokens\": [0-9]+, \"epochs\": ${said:-none}" resumed/log.jsonl
rm -r resumed/step_00000008
run $tiny --train 'a.txt:0.5,b_*.txt:0.5' --out resumed --resume
check "another mixture: exit code $status" [ "$status" -eq 0 ]
check "another mixture is named" grep -q '^note: --train was a.txt:0.7,b_\*.txt:0.3 in the checkpoint, the run goes on with a.txt:0.5,b_\*.txt:0.5$' out
check "another mixture: what becomes of the order" grep -q '^note: the order of the data goes on at window 32 of the new --train: ' out
check "another mixture: other bits" [ "$(hashes whole/step_00000008)" != "$(hashes resumed/step_00000008)" ]
# Text that changes behind a name changes the order of all windows; so does --val, which leaves training the last tenth.
rm -r resumed/step_00000008
cp b_2.txt b_3.txt
run $tiny --train "$mixture" --out resumed --resume
check "a file more: exit code $status" [ "$status" -eq 0 ]
check "a file more is named" grep -qE '^note: the training data had [0-9,]+ tokens in the checkpoint, the run goes on with [0-9,]+$' out
check "a file more: what becomes of the order" grep -q '^note: the order of the data goes on at window 32 of the new --train: ' out
rm -r resumed/step_00000008 b_3.txt
cp b_2.txt kept && tr A-Y B-Z <kept >b_2.txt
run $tiny --train "$mixture" --out resumed --resume
check "other text: exit code $status" [ "$status" -eq 0 ]
check "other text of the same length is named" grep -qx 'note: the training data is other text than in the checkpoint, of the same length; the run goes on with it' out
rm -r resumed/step_00000008
mv kept b_2.txt
run $tiny --train "$mixture" --out resumed --resume
check "the same text is not" [ "$(grep -c '^note: the training data' out)" -eq 0 ]
rm -r resumed/step_00000008
run $tiny --train "$mixture" --val a.txt --out resumed --resume --keep-best
check "other validation: what --keep-best compares" grep -q '^note: --keep-best begins anew: the checkpoints that there are were validated on other data$' out
check "a tenth more" grep -qE '^note: the training data had [0-9,]+ tokens in the checkpoint, ' out
run $tiny --train a.txt --val "$mixture"
check "a mixture to validate: exit code $status" [ "$status" -eq 0 ]
check "a mixture to validate: its sources" grep -qE '^validation +mixture of 2 sources' out

cp a.txt a.jsonl
run $tiny --train 'a.jsonl:0.5,a.txt:0.5'
check "lines of JSON: exit code $status" [ "$status" -eq 0 ]
json='is read as plain text, with all that is JSON in it; hint: data/text.py makes shards '
check "lines of JSON are named" grep -q "^note: a.jsonl $json" out
cp a.txt a.json
run $tiny --train a.json
check "JSON: exit code $status" [ "$status" -eq 0 ]
check "JSON is named" grep -q "^note: a.json $json" out
check "JSON is named once" [ "$(grep -c '^note:' out)" -eq 1 ]
cp a.txt a.NDJSON
run $tiny --train a.NDJSON
check "ndjson, in capitals: named" grep -q "^note: a.NDJSON $json" out
cp a.txt json.d
run $tiny --train json.d
check "a text whose name has json in it is none" [ "$(grep -c '^note:' out)" -eq 0 ]
run $tiny --train a.txt --val a.jsonl
check "lines of JSON, to validate: named" grep -q "^note: a.jsonl $json" out
printf 'PAR1\025' >a.parquet
run $tiny --train a.txt --val a.parquet
refused "parquet, to validate" '^error: --val: a.parquet looks like parquet, not text; hint: data/text.py makes shards '

# ---- packed ----
# documents FILE N: a shard of N tokens of 1 to 59, with end-of-text (50256) every 3 to 15 of them.
documents() {
    # shellcheck disable=SC2059
    printf "$(awk -v n="$2" '
        function number(x) { printf "\\%03o\\%03o", x % 256, int(x / 256) }
        BEGIN {
            number(55432); number(308); number(1); number(0); number(n); number(0)
            for (i = 0; i < 506; i++) number(0)
            for (i = left = 0; i < n; i++) {
                if (left-- <= 0) { number(50256); left = 3 + i * 7 % 13 } else number(1 + i % 59)
            }
        }')" >"$1"
}
documents train.bin 3000
documents val.bin 500
packed="--model nano --layers 1 --heads 2 --channels 16 --batch 2 --seq 16 --warmup 0 --eval-batches 2 --eval-every 0 --sample-tokens 0 --seed 7 --steps 6 --tokens-per-step 128 --train train.bin --val val.bin --pack --documents"
run $packed --save-every 3 --out packed
check "packed: exit code $status" [ "$status" -eq 0 ]
check "packed: says what is cut" grep -qE '^train +train.bin: 1 shard, 3,000 tokens \(uint16\), packed: [0-9.]+ % of documents that fit are cut, not [0-9.]+ %, every slot filled$' out
check "packed: no note" [ "$(grep -c '^note:' out)" -eq 0 ]
check "packed: said in the log" grep -q '"train": "[^"]*packed: ' packed/log.jsonl
check "packed: validation is as it was" grep -qE '^validation +val.bin: 1 shard, 500 tokens \(uint16\)$' out
cp -r packed packed_resumed && rm -r packed_resumed/step_00000006
run $packed --out packed_resumed --resume
check "packed: resumes to the bit" [ "$(hashes packed/step_00000006)" = "$(hashes packed_resumed/step_00000006)" ]
rm -r packed_resumed/step_00000006
run $(echo "$packed" | sed 's/ --pack / --pack 0 /') --out packed_resumed --resume
check "packed no more: what becomes of the order" grep -q '^note: the order of the data goes on at window 24 of the new --pack: ' out
run $packed --reproducible 4 --out packed_1
run $packed --reproducible 4 --out packed_2 --gpus 2
check "packed: the same bits on 2 ranks" [ "$(hashes packed_1/step_00000006)" = "$(hashes packed_2/step_00000006)" ]
run $(echo "$packed" | sed 's/ --pack / /') --out plain
check "packed: other windows than plain" [ "$(hashes packed/step_00000006)" != "$(hashes plain/step_00000006)" ]
run $packed --memory
check "packed: in the memory plan" grep -qE '^ +packed sequences +[0-9.]+ [KM]iB on the host$' out
run --model packed --export packed.bin
check "documents: exported, exit code $status" [ "$status" -eq 0 ]
check "documents: an export says that others do not cut" [ "$(grep -c '^note: attention of this model sees its own document only; .* past an end-of-text token$' out)" -eq 1 ]
run --model packed --documents 0 --export whole.bin
check "documents: exported without, exit code $status" [ "$status" -eq 0 ]
check "documents: exported without, no note" [ "$(grep -c '^note:' out)" -eq 0 ]
run $tiny --train a.txt --pack
refused "packed: bytes have no end-of-text" '^error: --pack: the tokenizer has no end-of-text token; .*; hint: data/text.py makes shards '
# A tokenizer of the 256 bytes and end-of-text.
# shellcheck disable=SC2059
printf "$(awk 'function number(x) { printf "\\%03o\\%03o", x % 256, int(x / 256) }
    BEGIN {
        number(55240); number(308); number(2); number(0); number(257); number(0); number(256)
        for (i = 0; i < 505; i++) number(0)
        for (i = 0; i < 256; i++) printf "\\001\\%03o", i
    }')\015<|endoftext|>" >ends.bin
plain_text='plain text has no end-of-text tokens, so b_\*.txt is one document; hint: data/text.py makes shards'
run $tiny --train 'b_*.txt' --tokenizer ends.bin --pack
check "packed text: exit code $status" [ "$status" -eq 0 ]
check "packed text: is one document" grep -q "^note: --pack: $plain_text" out
run $tiny --train 'b_*.txt' --tokenizer ends.bin --documents
check "text, --documents: is one document" grep -q "^note: --documents: $plain_text" out
run $tiny --train 'b_*.txt' --tokenizer ends.bin
check "text without documents: no note" [ "$(grep -c '^note:' out)" -eq 0 ]
short="--batch 2 --seq 16 --eval-batches 60" # beyond what there is to validate on
run --model nano --layers 1 --heads 2 --channels 16 $short --warmup 0 --sample-tokens 0 --steps 1 --train "$mixture" --out often
grep '^step 1/1 | val loss' out | sed 's/.* //' >expected
run --model often --eval-only
check "--eval-only of a mixture: the loss that the run printed" [ "$(tail -n 1 out | sed 's/.* //' | xargs printf %.4f)" = "$(cat expected)" ]
check "--eval-only of a mixture: as many batches" grep -q '^evaluation  *60 batches of 2 x 16 ' out
run --model often --eval-only --batch 4
check "--eval-only of a mixture, another batch: each window once" grep -qE '^evaluation +12 batches of 4 x 16 ' out
cp a.txt 'a.txt:0.7,b_*.txt:0.3'
run $tiny --train "$mixture"
check "a file of that very name comes first" grep -qE '^train +a.txt:0.7,b_\*.txt:0.3: 1 text file' out
finish
