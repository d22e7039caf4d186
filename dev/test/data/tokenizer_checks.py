"""data/train_tokenizer.py, and tokenizers of others: their files, shards in their tokens, and the trainer that takes them."""
import json
import os
import struct
import sys

from data_case import DATA, EOT, WORK, check, equal, refuses, run, run_on_full_disk, shard, trainer, tree, works, write


def test_train_tokenizer():
    """A tokenizer learned from text, its files, shards in its tokens, and the trainer that takes them: train, then sample."""
    tiny = ("--layers", "1", "--heads", "2", "--channels", "16", "--batch", "1", "--seq", "8", "--steps", "1", "--warmup", "0", "--sample-tokens", "1")
    text = write("learn.txt", "the cat, then the hat\n" * 30)
    done = run("train_tokenizer.py", text, "--vocab-size", "264", "--out", "own tokenizer")
    works("train_tokenizer.py", done)
    check("train_tokenizer.py: says how to go on", "own tokenizer: 264 tokens from 660 characters; to train with them: --tokenizer own tokenizer" in done.stdout, done.stdout)
    equal("train_tokenizer.py: files", tree(os.path.join(WORK, "own tokenizer")), ["merges.txt", "tokenizer.json", "tokenizer_config.json", "vocab.json"])
    with open(os.path.join(WORK, "own tokenizer/vocab.json"), encoding="utf-8") as file:
        vocab = json.load(file)
    with open(os.path.join(WORK, "own tokenizer/merges.txt"), encoding="utf-8") as file:
        merges = file.read().split("\n")
    # "th" and "he" are as frequent, and "at": of equal ones the stand-in takes the first by its letters
    equal("train_tokenizer.py: merges", merges[:3], ["#version: 0.2", "h e", "t he"])
    equal("train_tokenizer.py: bytes, merges, end-of-text", [vocab[token] for token in ("!", "a", "\u0120", "he", "the", "<|endoftext|>")], [0, 64, 220, 256, 257, 263])
    works("text.py --tokenizer", run("text.py", write("own.txt", "the <|endoftext|>"), "--tokenizer", "own tokenizer", "--val-fraction", "0", "--out", "out/own"))
    found = shard(os.path.join(WORK, "out/own/text_train_000001.bin"))
    equal("text.py --tokenizer: end-of-text in a text is text", (found[:2], 263 in found[1:]), ([263, 257], False))
    equal("text.py --tokenizer: its tokenizer beside the shards", tree(os.path.join(WORK, "out/own")), ["gpt2_tokenizer.bin", "text_train_000001.bin"])
    with open(os.path.join(WORK, "out/own/gpt2_tokenizer.bin"), "rb") as file:
        data = file.read()
    equal("text.py --tokenizer: header", struct.unpack("<4I", data[:16]), (20240328, 2, 264, 263))
    with open(os.path.join(DATA, "gpt2_tokenizer.bin"), "rb") as file:
        equal("text.py --tokenizer: GPT-2's in data/ stays", struct.unpack("<4I", file.read(16)), (20240328, 2, 50257, EOT))
    check("text.py --tokenizer: tokens", data[1024:1026] == b"\1!" and b"\2he\3the" in data and data.endswith(b"\x0d<|endoftext|>"), data[-40:])
    said = trainer(*tiny, "--train", text, "--tokenizer", "own tokenizer", "--out", "out/model").stdout
    check("the trainer: a model of the tokenizer's size", "vocabulary 264 (padded 384)" in said and "bpe of 264 tokens, --tokenizer: own tokenizer/tokenizer.json" in said, said)
    said = trainer("--model", "out/model", "--prompt", "the cat", "--sample-tokens", "3").stdout
    check("the trainer: samples with it", "bpe of 264 tokens, the model's own" in said, said)
    with open(os.path.join(WORK, "out/model/step_00000001/tokenizer.bin"), "rb") as file:
        check("the trainer's file and the script's are the same", file.read() == data)
    said = trainer(*tiny, "--train", "out/own/text_train_000001.bin", "--tokenizer", "out/own").stdout
    check("the trainer: shards in its tokens", "vocabulary 264" in said and "done: step 1" in said, said)
    said = trainer(*tiny, "--train", "out/own/text_train_000001.bin").stdout
    check("the trainer: shards in its tokens, with the tokenizer beside them", "vocabulary 264" in said and "beside the shards: out/own/gpt2" in said, said)
    done = run("train_tokenizer.py", text, "--out", "few", "--vocab-size", "1000")
    check("little text, few tokens", done.returncode == 0 and "note: no more than" in done.stdout, done.stdout + done.stderr)
    refuses("a tokenizer is there", "few/tokenizer.json: there already", run("train_tokenizer.py", text, "--out", "few"))
    os.makedirs(os.path.join(WORK, "others"))
    mine = write("others/vocab.json", "mine")
    refuses("a file of another tokenizer is there", "others/vocab.json: there already", run("train_tokenizer.py", text, "--out", "others"))
    with open(os.path.join(WORK, mine), encoding="utf-8") as file:
        equal("it stays, alone", (file.read(), os.listdir(os.path.join(WORK, "others"))), ("mine", ["vocab.json"]))
    refuses("a file for a folder", "--out %s: expected a folder, found a file" % mine, run("train_tokenizer.py", text, "--out", mine))
    refuses("other shards' tokenizer is there", "out/own/gpt2_tokenizer.bin: another tokenizer is there",
            run("text.py", text, "--tokenizer", "few", "--out", "out/own", "--name", "few"))
    with open(os.path.join(WORK, "out/own/gpt2_tokenizer.bin"), "rb") as file:
        check("it stays, and no shards come", file.read() == data and not [name for name in os.listdir(os.path.join(WORK, "out/own")) if "few" in name])
    for size in ("256", "65537"):
        refuses("--vocab-size " + size, "--vocab-size %s: expected 257 to 65536" % size, run("train_tokenizer.py", text, "--out", "none", "--vocab-size", size))
    for count in ("0", "-1"):
        refuses("--min-frequency " + count, "--min-frequency %s: expected 1 to" % count, run("train_tokenizer.py", text, "--out", "none", "--min-frequency", count))
    refuses("nothing to learn from", "empty.txt: no text in it", run("train_tokenizer.py", write("empty.txt", ""), "--out", "none"))
    refuses("no tokenizer there", "out/mixed/tokenizer.json: No such file", run("text.py", text, "--tokenizer", "out/mixed", "--out", "out/refused"))
    refuses("a broken tokenizer", "--tokenizer learn.txt: no tokenizer.json", run("text.py", text, "--tokenizer", "learn.txt", "--out", "out/refused"))
    check("what is refused leaves nothing", not os.path.exists(os.path.join(WORK, "none")) and not os.path.exists(os.path.join(WORK, "out/refused")), "")
    refuses("train_tokenizer.py: a full disk", "none/tokenizer.json: File too large", run_on_full_disk("train_tokenizer.py", text, "--out", "none"), 1)
    check("train_tokenizer.py: a full disk: nothing is left", not os.path.exists(os.path.join(WORK, "none")))
    test_other_tokenizers(text)
    sys.path.insert(0, DATA)
    import train_tokenizer
    tokens, kept = train_tokenizer.vocabulary([("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c"), ("x", "y"), ("x", "z")], 261)
    equal("a second way to a token is left out, and what is too much", (kept, tokens["abc"], tokens["<|endoftext|>"]),
          ([("b", "c"), ("a", "b"), ("a", "bc"), ("x", "y")], 258, 260))


def test_other_tokenizers(text):
    """A tokenizer.json as others make it: no token of a text is lost, and what the trainer would encode otherwise is refused."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"}, "behavior": "Isolated", "invert": False}
    steps = lambda *list_of: {"type": "Sequence", "pretokenizers": list(list_of)}
    with open(os.path.join(WORK, "own tokenizer/tokenizer.json"), encoding="utf-8") as file:
        usual = json.load(file)

    def other(name, **parts):
        path = write("other/tokenizer.json", json.dumps({**usual, **parts}))
        return run("text.py", text, "--tokenizer", path, "--val-fraction", "0", "--out", "out/" + name)

    works("a tokenizer.json as it was", other("usual"))
    works("a tokenizer.json that cuts texts short", other("whole", truncation={"max_length": 4}, pre_tokenizer=steps(split, byte_level)))
    equal("no text is cut short", *(shard(os.path.join(WORK, "out", name, "text_train_000001.bin")) for name in ("whole", "usual")))
    model, vocab = usual["model"], usual["model"]["vocab"]
    for words, parts in (("model: expected BPE, as the trainer has it, found WordLevel", {"model": {**model, "type": "WordLevel"}}),
                         ("model.dropout: expected null, as the trainer has it, found 0.1", {"model": {**model, "dropout": 0.1}}),
                         ("normalizer: expected null, as the trainer has it, found ['NFC']", {"normalizer": {"type": "NFC"}}),
                         ("found ['Lowercase']", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}}),
                         ("pre_tokenizer: expected GPT-2's, ByteLevel, as the trainer has it, found ['Digits', 'ByteLevel']", {"pre_tokenizer": steps({"type": "Digits"}, byte_level)}),
                         ("found ['ByteLevel']", {"pre_tokenizer": {**byte_level, "use_regex": True, "add_prefix_space": True}}),
                         ("found ['ByteLevel']", {"pre_tokenizer": byte_level}),
                         ("found ['Split', 'ByteLevel']", {"pre_tokenizer": steps({**split, "behavior": "Removed"}, byte_level)}),
                         ("found ['Split', 'Digits', 'ByteLevel']", {"pre_tokenizer": steps(split, {"type": "Digits"}, byte_level)}),
                         ("pre_tokenizer: expected GPT-2's, ByteLevel, as the trainer has it, found [None]", {"pre_tokenizer": None}),
                         ("added_tokens: expected special ones alone, as the trainer has it, found ['word']", {"added_tokens": [{"content": "word", "special": False}]}),
                         ("expected ids from 0 to 264, each of a token of 1 to 255 bytes, found 0 to 300, and 13 bytes", {"model": {**model, "vocab": {**vocab, "zzz": 300}}}),
                         ("expected ids from 0 to 264, each of a token of 1 to 255 bytes, found 0 to 264, and 256 bytes", {"model": {**model, "vocab": {**vocab, "z" * 256: 264}}})):
        refuses("a tokenizer of another kind, " + words, words, other("refused", **parts))
