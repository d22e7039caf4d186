#!/bin/sh
# Checkpoints in transformers, and its folders here: the same tokens, the same loss, the same greedy text. PYTHON names an interpreter
# with torch and transformers (4.44 or later, 5); where it has none, the test is skipped.
# Usage: PYTHON=... dev/test/checkpoint/test_transformers.sh [PROGRAM], from the repository root.
set -u
program=${1:-./train_gpt2}
test=transformers
. dev/test/user.sh
case $program in /*) ;; *) program=$PWD/$program ;; esac
python=${PYTHON:-python3}
side=$PWD/dev/test/transformers_side.py
export PYTHONDONTWRITEBYTECODE=1
if ! "$python" -c 'import torch, transformers, tokenizers; transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=8))' >/dev/null 2>&1; then
    echo "skip: $python has no torch or no transformers"
    echo 'transformers: 0 passed, 0 failed, 1 skipped'
    exit 0
fi
ours() { "$program" --device cpu "$@" >"$work/out" 2>"$work/err" </dev/null; }
theirs() { "$python" "$side" "$@" >"$work/out" 2>"$work/err"; }
cat README.md dev/README.md dev/attention/README.md llmc/run/*.md | LC_ALL=C tr -d '\200-\377' >"$work/text.txt"
mkdir "$work/elsewhere"
fast="--batch 8 --seq 64 --steps 200 --warmup 5 --lr 5e-3 --eval-batches 1 --sample-tokens 0"
size="--layers 2 --heads 2 --channels 64"

theirs make "$work/text.txt" "$work/hf"
check "save_pretrained makes a folder" [ $? -eq 0 ]
ours $size $fast --train "$work/text.txt" --out "$work/bytes"
check "a byte-level run" [ $? -eq 0 ]
ours $size $fast --train "$work/text.txt" --tokenizer "$work/hf" --out "$work/bpe"
check "a run with the folder's tokenizer" [ $? -eq 0 ]
(cd "$work/elsewhere" && "$program" --device cpu $fast --model ../hf --train ../text.txt --out ../tuned) >"$work/out" 2>"$work/err"
check "a folder of save_pretrained trains, from another folder" [ $? -eq 0 ]
check "with its own tokenizer" grep -qE "^tokenizer +bpe of 400 tokens, the model's own: ../hf/tokenizer.json" "$work/out"
cp -r "$work/tuned/step_00000200" "$work/plain" && rm "$work/plain/tokenizer.bin" "$work/plain/trainer_state.json"
for which in bytes bpe tuned; do mv "$work/$which/step_00000200" "$work/$which.saved"; done
mv "$work/hf" "$work/hf.saved" && mv "$work/plain" "$work/plain.saved"

folders=$(for which in bytes bpe tuned hf plain; do echo "$which=$work/$which.saved"; done)
theirs read "$work/text.txt" "$work" $folders
check "transformers opens every folder" [ $? -eq 0 ]
check "AutoTokenizer gives a byte-level checkpoint's bytes" grep -qx bytes "$work/bytes.said"
for which in bytes bpe tuned hf plain; do
    folder=$work/$which.saved
    check "$which: text comes back from AutoTokenizer" grep -qx 'round trip' "$work/$which.said"
    ours --model "$folder" --train "$work/text.txt" --batch 8 --seq 32 --steps 1 --lr 1e-9 --warmup 0 --eval-batches 1 --sample-tokens 0
    expected=$(sed -n 's/ tokens$//p' "$work/$which.said")
    check "$which: ${expected:-no} tokens, as transformers counts them" grep -q "^train .* ${expected:-no} tokens" "$work/out"
    expected=$(sed -n 's/^val loss //p' "$work/$which.said")
    found=$(sed -n 's/.*val loss \([0-9.]*\)$/\1/p' "$work/out" | head -n 1)
    check "$which: loss ${found:-unknown}, in transformers ${expected:-unknown}" awk "BEGIN { d = ${found:-0} - ${expected:-9}; exit !(d < 2e-4 && d > -2e-4) }"
    for number in 0 1; do
        [ $number -eq 0 ] && prompt='The ' || prompt="line, isn't"
        ours --model "$folder" --prompt "$prompt" --temperature 0 --sample-tokens 24
        # Without newlines at the end: the program writes one only where the text has none.
        check "$which: our greedy text after '$prompt' is transformers'" [ "$(cat "$work/out")" = "$(cat "$work/$which.text$number")" ]
    done
done
# The same choice of every item: of the random model of save_pretrained, and of one that trained.
theirs choices 400 "$work/items.bin"
for which in hf tuned; do
    ours --model "$work/$which.saved" --hellaswag "$work/items.bin" --batch 8 --seq 64 --eval-only --out "$work/scored.$which"
    check "$which: items are scored" grep -q 'hellaswag acc_norm' "$work/out"
    theirs choose "$work/$which.saved" "$work/items.bin"
    check "$which: the choices of transformers" grep -qF "\"chosen\": \"$(cat "$work/out")\"" "$work/scored.$which/log.jsonl"
done
finish
