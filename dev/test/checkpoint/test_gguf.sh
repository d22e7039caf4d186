#!/bin/sh
# Exported GGUF files in other programs: the gguf package finds every tensor, rounded as it rounds itself; llama.cpp gives
# our greedy text. PYTHON names an interpreter with gguf and llama_cpp; where it has none, the test is skipped.
# Usage: PYTHON=... dev/test/checkpoint/test_gguf.sh [PROGRAM], from the repository root.
set -u
program=${1:-./train_gpt2}
test=gguf
. dev/test/user.sh
python=${PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1
if ! "$python" -c 'import gguf, llama_cpp' >/dev/null 2>&1; then
    echo "skip: $python has no gguf or no llama_cpp"
    echo 'gguf: 0 passed, 0 failed, 1 skipped'
    exit 0
fi
theirs() { "$python" dev/test/export_side.py "$@" >"$work/theirs" 2>"$work/err"; }
cat README.md dev/README.md dev/attention/README.md llmc/run/*.md | LC_ALL=C tr -d '\200-\377' | tr -s ' \n|-' >"$work/text.txt"
# A vocabulary of bytes, and of some pairs of them besides.
"$python" - "$work/bpe.bin" <<'EOF'
import struct, sys
tokens = [bytes([b]) for b in range(256)] + [s.encode() for s in (' t', 'he', ' the', 'in', 'er', ' a', 'on', 'or', ' s', '<|endoftext|>')]
with open(sys.argv[1], 'wb') as file:
    file.write(struct.pack('<256I', 20240328, 2, len(tokens), len(tokens) - 1, *[0] * 252))
    file.write(b''.join(bytes([len(t)]) + t for t in tokens))
EOF
fast="--layers 2 --heads 2 --channels 64 --batch 16 --seq 64 --steps 500 --warmup 5 --lr 1e-2 --eval-batches 1 --sample-tokens 0"
for which in bytes bpe; do
    [ $which = bpe ] && tokenizer=$work/bpe.bin || tokenizer=bytes
    run $fast --train "$work/text.txt" --tokenizer "$tokenizer" --out "$work/$which"
    check "$which: a run" [ "$status" -eq 0 ]
    for type in f32 f16 bf16 q8_0; do
        file=$work/$which.$type.gguf
        run --model "$work/$which" --export "$file" --export-type $type
        check "$which, $type: exported" [ "$status" -eq 0 ]
        theirs tensors "$work/$which/step_00000500" "$file"
        check "$which, $type: the tensors in the gguf package" [ $? -eq 0 ]
    done
    for prompt in 'The ' "line, isn't"; do
        run --model "$work/$which" --prompt "$prompt" --temperature 0 --sample-tokens 24
        theirs greedy "$work/$which.f32.gguf" "$prompt" 24
        check "$which: llama.cpp's greedy text after '$prompt' is ours" [ "$(cat "$work/out")" = "$(cat "$work/theirs")" ]
    done
done
finish
