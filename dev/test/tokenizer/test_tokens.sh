#!/bin/sh
# Which tokenizer a run takes, as a user sees it: the model's own or the one that is named, the same from every folder;
# what is missing or broken is one line and exit 2, never other tokens. Every run is tiny and on the CPU.
# Usage: dev/test/tokenizer/test_tokens.sh [PROGRAM], from the repository root. Ends with 'tokens: N passed, N failed, N skipped'.
set -u
program=${1:-./train_gpt2}
test=tokens
. dev/test/user.sh
case $program in /*) ;; *) program=$PWD/$program ;; esac

# run ARGS...: in $work; output in $work/out and $work/err, exit code in $status.
run() {
    (cd "$work" && "$program" --device cpu "$@") >"$work/out" 2>"$work/err" </dev/null
    status=$?
}
refuses() {
    case_name=$1 case_pattern=$2
    shift 2
    run "$@"
    refused "$case_name" "$case_pattern"
}
# works NAME ARGS...: exit 0.
works() {
    case_name=$1
    shift
    run "$@"
    check "$case_name: exit code $status" [ "$status" -eq 0 ]
}
# tokenizer_is NAME PATTERN: the last run's header says so.
tokenizer_is() { check "$1" grep -qE -e "^tokenizer +$2\$" "$work/out"; }
# same_weights NAME A B: two checkpoints with the same bits.
same_weights() { check "$1" cmp -s "$work/$2/step_00000002/model.safetensors" "$work/$3/step_00000002/model.safetensors"; }
bytes() { for byte in "$@"; do printf "\\$(printf %03o "$byte")"; done; }
int32() { for n in "$@"; do bytes $((n & 255)) $((n >> 8 & 255)) $((n >> 16 & 255)) $((n >> 24 & 255)); done; }
zeros() { dd if=/dev/zero bs=4 count="$1" 2>/dev/null; }
# An llm.c tokenizer: the bytes, six merges, <|endoftext|>.
small_tokenizer() {
    int32 20240328 2 263 262
    zeros 252
    byte=0
    while [ $byte -lt 256 ]; do bytes 1 $byte; byte=$((byte + 1)); done
    for token in th the qu ox laz ' l'; do bytes ${#token}; printf '%s' "$token"; done
    bytes 13
    printf '<|endoftext|>'
}
# shard TOKEN...: those, repeated 100 times.
shard() {
    int32 20240520 1 $((100 * $#))
    zeros 253
    tokens=$(for token in "$@"; do printf '\\%03o\\%03o' $((token & 255)) $((token >> 8)); done)
    i=0
    while [ $i -lt 100 ]; do printf "$tokens"; i=$((i + 1)); done
}
size="--layers 1 --heads 2 --channels 32"
tiny="--batch 2 --seq 16 --steps 2 --warmup 0 --eval-batches 1 --sample-tokens 8 --seed 7"
i=0
while [ $i -lt 100 ]; do echo "$i the quick brown fox jumps over the lazy dog"; i=$((i + 1)); done >"$work/text.txt"
small_tokenizer >"$work/small.bin"
mkdir "$work/elsewhere"

# ---- a new model on text: bytes, said so, whatever lies in the working directory ----
mkdir "$work/data" && cp "$work/small.bin" "$work/data/gpt2_tokenizer.bin"
works "bytes" $size $tiny --train text.txt --out bytes
tokenizer_is "a new model on text takes bytes" 'bytes \(256 tokens\), the default for text'
check "bytes: the log says so" grep -q '"tokenizer": {"name": "bytes", "tokens": 256, "source": "bytes"}' "$work/bytes/log.jsonl"
check "bytes: the checkpoint says so" grep -q '"name": "bytes",' "$work/bytes/step_00000002/trainer_state.json"
for file in tokenizer.bin vocab.json merges.txt tokenizer_config.json; do
    check "bytes: the checkpoint has $file" [ -s "$work/bytes/step_00000002/$file" ]
done
check "bytes: transformers are told the context" grep -q '"model_max_length": 16,' "$work/bytes/step_00000002/tokenizer_config.json"
check "bytes: merges.txt is its header" [ "$(cat "$work/bytes/step_00000002/merges.txt")" = '#version: 0.2' ]
works "a named tokenizer" $size $tiny --train text.txt --tokenizer small.bin --out bpe
tokenizer_is "a named tokenizer is said" 'bpe of 263 tokens, --tokenizer: small.bin'
check "a named tokenizer: the log says so" grep -q '"tokenizer": {"name": "bpe of 263 tokens", "tokens": 263, "source": "small.bin"}' "$work/bpe/log.jsonl"
check "a named tokenizer: the checkpoint says so" grep -q '"source": "small.bin"' "$work/bpe/step_00000002/trainer_state.json"
check "its merges are made" grep -qE '^train +.* [34],[0-9]{3} tokens \(bpe of 263 tokens' "$work/out"
works "a folder that holds gpt2_tokenizer.bin" $size $tiny --train text.txt --tokenizer data --out bpe_of_folder
tokenizer_is "a folder that holds gpt2_tokenizer.bin: said" 'bpe of 263 tokens, --tokenizer: data/gpt2_tokenizer.bin'
refuses "a tokenizer that is not there" '^error: --tokenizer: none.bin: no such file or folder; hint: bytes, or .*gpt2_tokenizer.bin$' $size $tiny --train text.txt --tokenizer none.bin

# ---- a model's own ----
# A copy of the model as others hand it over: without our checksums.
model() { rm -rf "$work/$2" && cp -r "$work/$1/step_00000002" "$work/$2" && rm "$work/$2/trainer_state.json"; }
model bpe own
works "the model's own" --model own $tiny --train text.txt --out own_tuned
tokenizer_is "the model's own is said" "bpe of 263 tokens, the model's own: own/tokenizer.bin"
model own_tuned own_2 && works "carried on" --model own_2 --prompt the --sample-tokens 4
rm "$work/own/tokenizer.bin"
works "vocab.json and merges.txt" --model own $tiny --train text.txt --out own_hf
tokenizer_is "vocab.json is said" "bpe of 263 tokens, the model's own: own/vocab.json"
same_weights "vocab.json gives the same tokens" own_tuned own_hf

merges=$(sed '1d; s/.*/"&"/' "$work/own/merges.txt" | paste -sd,)
json() { printf '{"added_tokens": [{"id": 262, "content": "<|endoftext|>", "special": true}], "normalizer": %s, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "model": {"type": "BPE", "vocab": %s, "merges": [%s]}}' "$1" "$(cat "$work/bpe/step_00000002/vocab.json")" "$merges"; }
rm "$work/own/vocab.json" "$work/own/merges.txt" "$work/own/tokenizer_config.json"
json null >"$work/own/tokenizer.json"
works "tokenizer.json alone" --model own $tiny --train text.txt --out own_json
tokenizer_is "tokenizer.json is said" "bpe of 263 tokens, the model's own: own/tokenizer.json"
same_weights "tokenizer.json gives the same tokens" own_tuned own_json
works "the tokens of tokenizer.json, named in another file" --model own --tokenizer small.bin --prompt the --sample-tokens 4
(cd "$work/elsewhere" && "$program" --device cpu --model ../own $tiny --train ../text.txt --out ../own_elsewhere) >"$work/out" 2>"$work/err"
check "from another folder: exit code" [ $? -eq 0 ]
same_weights "from another folder: the same tokens" own_tuned own_elsewhere
json '{"type": "NFC"}' >"$work/own/tokenizer.json"
refuses "a tokenizer.json that cannot be served" '--model: own/tokenizer.json: normalizer.type: expected null, found NFC' --model own $tiny --train text.txt
head -c 500 "$work/own/tokenizer.json" >"$work/cut" && mv "$work/cut" "$work/own/tokenizer.json"
refuses "a tokenizer.json cut short" '--model: own/tokenizer.json: JSON' --model own $tiny --train text.txt --out none
refuses "a tokenizer.json cut short, sampling" 'own/tokenizer.json' --model own --prompt the
works "a tokenizer.json cut short: another is named" --model own $tiny --train text.txt --tokenizer small.bin
rm "$work/own/tokenizer.json"
refuses "no vocabulary" '--train: text.txt is text, and there is no tokenizer for it: own has no tokenizer.bin, tokenizer.json, or vocab.json and merges.txt; hint: --tokenizer' --model own $tiny --train text.txt --out none
refuses "no vocabulary, evaluation" 'own has no tokenizer.bin' --model own --train text.txt --eval-only
refuses "no vocabulary, a prompt" '--prompt: .*own has no tokenizer.bin' --model own --prompt the
refuses "no vocabulary, a chat" '^error: --chat: .*own has no tokenizer.bin' --model own --chat
check "no vocabulary: no folder is made" [ ! -e "$work/none" ]
model bytes mute && rm "$work"/mute/tokenizer* "$work/mute/vocab.json" "$work/mute/merges.txt"
refuses "256 ids are not taken for bytes" 'mute has no tokenizer.bin' --model mute $tiny --train text.txt
works "256 ids are bytes where it is said" --model mute $tiny --train text.txt --tokenizer bytes
model bpe half && rm "$work/half/tokenizer.bin" "$work/half/merges.txt"
refuses "merges.txt is missing" '^error: --model: half: expected vocab.json and merges.txt, found no merges.txt; hint: put it there, or tokenizer.json alone, or --tokenizer PATH$' --model half $tiny --train text.txt
sed -i.bak 's/"GPT2Tokenizer"/"TokenizersBackend"/' "$work/half/tokenizer_config.json" && rm "$work/half/tokenizer_config.json.bak"
refuses "merges.txt is missing, a fast tokenizer is named" 'found no merges.txt; hint: .* tokenizer.json alone' --model half $tiny --train text.txt
cp "$work/bpe/step_00000002/merges.txt" "$work/half"
refuses "a fast tokenizer without its file" '^error: --model: half/tokenizer_config.json: tokenizer_class: expected GPT2Tokenizer, found TokenizersBackend, whose tokenizer.json is missing; hint: put tokenizer.json beside it, or --tokenizer PATH$' --model half $tiny --train text.txt
json null >"$work/half/tokenizer.json"
works "a fast tokenizer with its file, as the hint says" --model half $tiny --train text.txt
rm "$work/half/vocab.json" "$work/half/merges.txt"
works "tokenizer.json alone, as the hint says" --model half $tiny --train text.txt
model bpe half && rm "$work/half/tokenizer.bin" "$work/half/vocab.json"
refuses "vocab.json is missing" 'half: expected vocab.json and merges.txt, found no vocab.json; hint: ' --model half $tiny --train text.txt
model bpe half && rm "$work/half/tokenizer.bin" && sed 's/"th": 256/"th": 257/; s/"the": 257/"the": 256/' "$work/bpe/step_00000002/vocab.json" >"$work/half/vocab.json"
refuses "a damaged vocab.json" 'half/merges.txt: merge 2: ' --model half $tiny --train text.txt
model bpe half && sed 's/"qu": 258/"uq": 258/' "$work/bpe/step_00000002/vocab.json" >"$work/half/vocab.json"
refuses "files that disagree" 'half/vocab.json: its tokens are not those of half/tokenizer.bin' --model half $tiny --train text.txt

# ---- another size than the model's ----
refuses "a smaller tokenizer than the model" '^error: --tokenizer: the tokenizer small.bin has 263 tokens, the model of bytes.* 256: .*; hint: without --tokenizer the model takes its own' --model bytes $tiny --train text.txt --tokenizer small.bin
refuses "a tokenizer that only happens to fit" '^error: --tokenizer: the tokenizer bytes has 256 tokens, the model of bpe/.* 263' --model bpe $tiny --train text.txt --tokenizer bytes
model bytes larger && rm "$work"/larger/tokenizer* "$work/larger/vocab.json" "$work/larger/merges.txt" && cp "$work/small.bin" "$work/larger/tokenizer.bin"
refuses "a larger tokenizer in the model's folder" '^error: --model: the tokenizer larger/tokenizer.bin has 263 tokens, the model of larger 256: .*; hint: --tokenizer names another$' --model larger $tiny --train text.txt

# ---- of the model's size, with other tokens ----
sed 's/qu/uq/' "$work/small.bin" >"$work/other.bin"
refuses "a named tokenizer with other tokens" '^error: --tokenizer: the tokenizer other.bin has other tokens than the model of bpe/step_00000002, the first under id 258; hint: without it the model takes its own$' --model bpe --tokenizer other.bin --prompt the
refuses "a named tokenizer with other tokens, resumed" '^error: --tokenizer: .* the first under id 258; hint: ' $size $tiny --train text.txt --tokenizer other.bin --out bpe --resume
works "a named tokenizer with the model's tokens" --model bpe --tokenizer small.bin --prompt the --sample-tokens 4
mkdir "$work/others" && cp "$work/other.bin" "$work/others/gpt2_tokenizer.bin" && shard 1 2 3 262 >"$work/others/a_train_000001.bin"
refuses "shards of another tokenizer" '^error: --train: the tokenizer others/gpt2_tokenizer.bin has other tokens than the model of bpe/step_00000002, the first under id 258; hint: move it away, where the shards have the tokens of bpe/step_00000002/tokenizer.bin$' --model bpe $tiny --train 'others/a_*.bin'
refuses "shards of another tokenizer, evaluation" '^error: --val: the tokenizer others/gpt2_tokenizer.bin has other tokens' --model bpe --eval-only --batch 2 --val 'others/a_*.bin'
mkdir -p "$work/above/made" && cp "$work/other.bin" "$work/above/gpt2_tokenizer.bin" && cp "$work/others/a_train_000001.bin" "$work/above/made"
refuses "shards below another tokenizer" '^error: --train: the tokenizer above/made/../gpt2_tokenizer.bin has other tokens than the model of bpe/step_00000002, the first under id 258; hint: --tokenizer bpe/step_00000002/tokenizer.bin, where the shards have its tokens$' --model bpe $tiny --train 'above/made/a_*.bin'
check "shards below another tokenizer: found before anything is printed" [ ! -s "$work/out" ]
works "shards below another tokenizer: as the hint says" --model bpe $tiny --train 'above/made/a_*.bin' --tokenizer bpe/step_00000002/tokenizer.bin
works "a new model below another tokenizer than is named" $size $tiny --train 'above/made/a_*.bin' --val 'above/made/a_*.bin' --tokenizer small.bin --out begun
works "it goes on as it was begun" --out begun --resume --steps 3
tokenizer_is "it goes on as it was begun: the tokenizer" "bpe of 263 tokens, the model's own: begun/step_00000002/tokenizer.bin"
works "it is evaluated as it was begun" --model begun --eval-only
works "other data of its own tokens" --out begun --resume --steps 4 --val 'above/made/a_*.bin' --tokenizer small.bin
refuses "other data below another tokenizer" '^error: --val: the tokenizer above/made/../gpt2_tokenizer.bin has other tokens than the model of begun/step_00000004, the first under id 258; hint: --tokenizer begun/' --out begun --resume --steps 5 --val 'above/made/a_*.bin'
cp "$work/other.bin" "$work/above/made/gpt2_tokenizer.bin"
refuses "another tokenizer beside the shards of a run that goes on" '^error: --train: the tokenizer above/made/gpt2_tokenizer.bin has other tokens than the model of begun/step_00000004, the first under id 258; hint: move it away, where the shards have the tokens of begun/step_00000004/tokenizer.bin$' --out begun --resume --steps 5
cp "$work/small.bin" "$work/above/made/gpt2_tokenizer.bin"
works "shards below another tokenizer, their own beside them" --model bpe $tiny --train 'above/made/a_*.bin'
mkdir "$work/made" && cp "$work/small.bin" "$work/made/gpt2_tokenizer.bin" && cp "$work/others/a_train_000001.bin" "$work/made"
mkdir "$work/fewer" && cp "$work/others/a_train_000001.bin" "$work/fewer"
{ int32 20240328 2 262 261; zeros 252; tail -c +1025 "$work/small.bin" | head -c $(($(wc -c <"$work/small.bin") - 1024 - 14)); } >"$work/fewer/gpt2_tokenizer.bin"
refuses "shards of two tokenizers" '^error: --train: the tokenizer others/gpt2_tokenizer.bin has other tokens than the model of bpe' --model bpe $tiny --train 'made/a_*.bin:1,text.txt:1,others/a_*.bin:1'
refuses "shards of another tokenizer to validate" '^error: --val: the tokenizer others/gpt2_tokenizer.bin has other tokens' --model bpe $tiny --train text.txt --val 'others/a_*.bin'
beside='the tokenizer others/gpt2_tokenizer.bin has other tokens than the run.s, small.bin, the first under id 258; hint:'
refuses "another tokenizer is named than the shards'" "^error: --train: $beside --tokenizer others/gpt2_tokenizer.bin, or move it away\$" --tokenizer small.bin $size $tiny --train 'others/a_*.bin' --out none
check "another tokenizer is named than the shards': found before anything is printed" [ ! -s "$work/out" ]
check "another tokenizer is named than the shards': no folder is made" [ ! -e "$work/none" ]
refuses "another tokenizer is named than that of shards to validate" "^error: --val: $beside --tokenizer" $size $tiny --train text.txt --val 'others/a_*.bin' --tokenizer small.bin
refuses "the model's tokenizer is named, and not the shards'" "^error: --train: $beside move it away, where the shards have the tokens of small.bin\$" --model bpe $tiny --train 'others/a_*.bin' --tokenizer small.bin
works "another tokenizer is named than the shards': as the hint says" $size $tiny --train 'others/a_*.bin' --tokenizer others/gpt2_tokenizer.bin
works "the shards' tokens are named in another file" $size $tiny --train 'others/a_*.bin' --tokenizer other.bin
cp "$work/small.bin" "$work/others/gpt2_tokenizer.bin"
works "shards of a tokenizer with fewer of the model's tokens" --model bpe $tiny --train 'fewer/a_*.bin'
works "shards of the model's tokenizer" --model bpe $tiny --train 'others/a_*.bin'
rm "$work/others/gpt2_tokenizer.bin"
works "shards of another tokenizer: as the hint says" --model bpe $tiny --train 'others/a_*.bin'

# ---- shards ----
mkdir -p "$work/set/mine"
shard 1 2 3 50256 >"$work/set/mine/a_train_000001.bin"
on_shards="$size $tiny --train set/mine/a_train_*.bin --val set/mine/a_train_000001.bin"
works "shards alone" $on_shards --out shards
tokenizer_is "shards alone: token ids" 'none: samples are token ids; there is no gpt2_tokenizer.bin in set/mine or above it'
check "shards alone: the sample is numbers" sh -c "sed -n '/^--- sample/,/^---\$/p' '$work/out' | sed '1d;\$d' | grep -qE '^[0-9 ]+(---)?\$'"
check "shards alone: the log says so" grep -q '"tokenizer": null' "$work/shards/log.jsonl"
refuses "shards alone, a prompt" '--prompt: .*there is no gpt2_tokenizer.bin in set/mine or above it; hint: --tokenizer' $on_shards --prompt a
refuses "shards alone, then text" 'text.txt is text.*shards/step_00000002 has no tokenizer' --model shards $tiny --train text.txt
refuses "shards to train, text to validate" '--val: text.txt is text' $size $tiny --train 'set/mine/a_train_*.bin' --val text.txt
cp "$work/small.bin" "$work/set/gpt2_tokenizer.bin"
refuses "beside the shards, another size" '^error: --train: the tokenizer set/mine/../gpt2_tokenizer.bin has 263 tokens, a new model on shards 50257; hint: --tokenizer set/mine/../gpt2_tokenizer.bin makes the model of its size, or move it away$' $on_shards
check "beside the shards, another size: found before anything is printed" [ ! -s "$work/out" ]
shard 1 2 3 262 >"$work/set/mine/b_train_000001.bin"
mkdir "$work/own_set" && cp "$work/set/mine/b_train_000001.bin" "$work/small.bin" "$work/own_set" && mv "$work/own_set/small.bin" "$work/own_set/gpt2_tokenizer.bin"
works "in the shards' folder, of any size" $size $tiny --train 'own_set/b_train_*.bin' --prompt he --out of_own_set
tokenizer_is "in the shards' folder, of any size: said" 'bpe of 263 tokens, beside the shards: own_set/gpt2_tokenizer.bin'
check "in the shards' folder, of any size: the model's" grep -q '"vocab_size": 263' "$work/of_own_set/step_00000002/config.json"
works "in the shards' folder, of any size, resumed" --out of_own_set --resume --steps 3
works "beside the shards, another size: as the hint says" $size $tiny --train 'set/mine/b_train_*.bin' --tokenizer set/mine/../gpt2_tokenizer.bin
refuses "beside the shards, another size than the model's" '^error: --train: the tokenizer set/mine/../gpt2_tokenizer.bin has 263 tokens, the model of shards/.* 50257: their ids cannot be the same; hint: --tokenizer names another, or move it away$' --model shards $tiny --train 'set/mine/a_train_*.bin'

# ---- a model whose table was rounded up: 264 rows for 263 tokens; 265 are none ----
for rows in 264 265; do
    { int32 20240328 2 $rows 262; zeros 252; tail -c +1025 "$work/small.bin"; bytes 2; printf 'zq'; [ $rows -eq 264 ] || { bytes 2; printf 'qz'; }; } >"$work/$rows.bin"
    works "$rows tokens" $size $tiny --train text.txt --tokenizer $rows.bin --out of$rows
    works "$rows tokens, as transformers has them" --model of$rows --export bare$rows
    (cd "$work/bare$rows" && rm tokenizer.bin vocab.json merges.txt tokenizer_config.json special_tokens_map.json)
    mkdir "$work/own$rows" "$work/llmc$rows"
    cp "$work/bare$rows"/* "$work/own$rows" && cp "$work/small.bin" "$work/own$rows/tokenizer.bin"
    works "$rows rows, 263 tokens" --model own$rows --prompt a --sample-tokens 4 --temperature 0
    cp "$work/out" "$work/text$rows"
    check "$rows rows, 263 tokens: eos_token_id is the tokenizer's end-of-text, no note" [ "$(grep -c '^note' "$work/err")" -eq 0 ]
    works "$rows rows, for llm.c" --model own$rows --export llmc$rows/x.bin
done
works "rounded up, --tokenizer" --model bare264 --tokenizer small.bin --prompt a --sample-tokens 4 --temperature 0
check "rounded up, --tokenizer: the same text" cmp -s "$work/out" "$work/text264"
works "rounded up, llm.c's files" --model llmc264/x.bin --prompt a --sample-tokens 4 --temperature 0
check "rounded up, llm.c's files: the same text" cmp -s "$work/out" "$work/text264"
refuses "not rounded up, --tokenizer" 'has 263 tokens, the model of bare265 265: ' --model bare265 --tokenizer small.bin --prompt a
refuses "not rounded up, llm.c's files" 'has 263 tokens, the model of llmc265/x.bin 265: ' --model llmc265/x.bin --prompt a
printf 'x' >"$work/set/mine/gpt2_tokenizer.bin"
refuses "beside the shards, broken" '--train: set/mine/gpt2_tokenizer.bin: header: expected 1024 bytes' $on_shards
# 50257 tokens: the bytes, made-up ones of three bytes, end-of-text.
{ int32 20240328 2 50257 50256; zeros 252; tail -c +1025 "$work/small.bin" | head -c 512
  awk 'BEGIN { s = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijkl"; n = 0
       for (i = 1; i <= 38; i++) for (j = 1; j <= 38; j++) for (k = 1; k <= 38 && n < 50000; k++) { printf "%c~%s%s%s", 4, substr(s, i, 1), substr(s, j, 1), substr(s, k, 1); n++ } }'
  bytes 13; printf '<|endoftext|>'; } >"$work/gpt2_tokenizer.bin"
cp "$work/gpt2_tokenizer.bin" "$work/set/mine"
works "beside the shards" $on_shards --out shown
tokenizer_is "beside the shards: said" 'bpe of 50257 tokens, beside the shards: set/mine/gpt2_tokenizer.bin'
check "beside the shards: the checkpoint carries it" cmp -s "$work/shown/step_00000002/tokenizer.bin" "$work/gpt2_tokenizer.bin"
mkdir "$work/set/other" && cp "$work/set/mine/a_train_000001.bin" "$work/set/other" && sed 's/AAA/aaa/' "$work/gpt2_tokenizer.bin" >"$work/set/other/gpt2_tokenizer.bin"
refuses "a new model on shards of two tokenizers" "^error: --val: the tokenizer set/other/gpt2_tokenizer.bin has other tokens than the run's, set/mine/gpt2_tokenizer.bin, the first under id 256; hint: move it away, where the shards have the tokens of set/mine/gpt2_tokenizer.bin$" $size $tiny --train 'set/mine/a_train_*.bin' --val 'set/other/a_train_*.bin'
mv "$work/set/mine/gpt2_tokenizer.bin" "$work/set/gpt2_tokenizer.bin"
(cd "$work/elsewhere" && "$program" --device cpu $(echo "$on_shards" | sed 's,set/,../set/,g') --out ../shown_2) >"$work/out" 2>"$work/err"
tokenizer_is "above the shards, from another folder" 'bpe of 50257 tokens, beside the shards: ../set/mine/../gpt2_tokenizer.bin'
same_weights "a tokenizer for samples changes nothing else" shards shown
works "a prompt on shards" $on_shards --prompt a
finish
