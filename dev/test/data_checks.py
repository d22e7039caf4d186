"""The scripts of data/ as programs, against token streams written by hand. They run in a copy of their folder, on stand-ins for their
packages (dev/test/stubs), without network. GPT-2's vocabulary is one of 50256 tokens with the bytes at GPT-2's ids, two merges, and
fillers that no text makes; so 'a' is 64, a space 220, a newline 198, "th" 256, "the" 257.

Three spaces in a row are 258, two of them, and one: GPT-2's pattern leaves the last one to the word.

Usage: data_checks.py WORK TRAINER, from the repository root. Prints one line a failure, and the counts at the end.
"""
import base64
import compileall
import concurrent.futures.process
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import runpy
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import urllib.request

WORK, TRAINER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
DATA, HUB = os.path.join(WORK, "data"), os.path.join(WORK, "hub")
EOT, TH, THE, SPACE, NEWLINE = 50256, 256, 257, 220, 198
STUBS = os.path.abspath("dev/test/stubs")
sys.path.insert(1, STUBS)
passed = failed = 0


def check(name, ok, found=""):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print("FAIL data: %s: %s" % (name, str(found)[:600]))


def equal(name, found, expected):
    check(name, found == expected, "found %r, expected %r" % (found, expected))


def ids(text):
    """The tokens of an ASCII text by hand: GPT-2's ids of single bytes, and the two merges."""
    single = {" ": SPACE, "\n": NEWLINE}
    out = []
    for part in text.replace("the", "\1").replace("th", "\2"):
        out.append({"\1": THE, "\2": TH}.get(part) or single.get(part) or ord(part) - 33)
    return out


def shard(path):
    """Tokens of a shard; the header is checked here, byte by byte."""
    with open(path, "rb") as file:
        data = file.read()
    n = (len(data) - 1024) // 2
    equal(path + ": header", data[:1024], struct.pack("<3i", 20240520, 1, n) + bytes(1012))
    return list(struct.unpack("<%dH" % n, data[1024:]))


def tree(folder):
    return sorted(os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names)


def become(path, arguments, cwd, environment):
    """The script as a program in this process, a child that has Python's own modules already. Returns the exit code."""
    os.chdir(cwd)
    for name in ("TEXT", "TIKTOKEN_CACHE_DIR"):  # whoever runs the tests may have set them
        os.environ.pop(name, None)
    os.environ.update(environment)
    sys.argv = [path, *arguments]
    sys.path[0] = DATA
    os.cpu_count = lambda: 1  # one worker, where --workers does not say how many
    time.sleep = lambda seconds: None  # between attempts to download; data_common_parts.py knows how long
    if os.path.basename(path) == "text.py" and "--workers" not in arguments:  # no thread fetches there: a fork is safe, and faster
        context = multiprocessing.get_context
        multiprocessing.get_context = lambda method: context("fork")
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(script, *arguments, cwd=WORK, **environment):
    """A script as a user runs it, in a process of its own; to start Python anew each time would take most of the test's."""
    environment = {"PYTHONPATH": STUBS, "PYTHONDONTWRITEBYTECODE": "1", "HUB": HUB, **environment}
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = 1
            try:
                code = become(os.path.join(DATA, script), arguments, cwd, environment)
                sys.stdout.flush()
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(script, code, out.read(), err.read())


def works(name, done):
    check(name, done.returncode == 0 and not done.stderr, done.stderr)


def refuses(name, words, done, code=2):
    check(name, done.returncode == code and done.stderr.count("\n") == 1 and words in done.stderr,
          "exit %d, expected %d and %r: %s" % (done.returncode, code, words, done.stderr))


def says(name, words, done):
    """A line begins so."""
    check(name, ("\n" + done.stdout).count("\n" + words) == 1, done.stdout)


def write(path, content):
    path = os.path.join(WORK, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def make_ranks():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    tokens = [bytes([b]) for b in printable + [b for b in range(256) if b not in printable]] + [b"th", b"the", b"  "]
    tokens += [b"\xfe" + bytes([i >> 8, i & 255]) for i in range(50256 - len(tokens))]
    return tokens, b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))


def edit(name, *pairs):
    """Replaces text in a script of the copy; what is not there is a failure."""
    path = os.path.join(DATA, name)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for old, new in pairs:
        check("%s has %s" % (name, old), text.count(old) == 1, text.count(old))
        text = text.replace(old, new)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def set_up():
    shutil.copytree("data", DATA, ignore=shutil.ignore_patterns(".venv", ".cache", "*.bin", "__pycache__", "tiny*/", "fineweb*/"))
    tokens, ranks = make_ranks()
    write("ranks", ranks)
    os.makedirs(HUB)
    edit("common.py", ("306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", hashlib.sha256(ranks).hexdigest()),
         ('"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"', repr("file://" + WORK + "/vocab.bpe")))
    compileall.compile_dir(DATA, quiet=1)
    return tokens


def header_of_tokenizer(path, tokens):
    with open(path, "rb") as file:
        data = file.read()
    equal("tokenizer: header", data[:1024], struct.pack("<4I", 20240328, 2, 50257, 50256) + bytes(1008))
    body = b"".join(bytes([len(token)]) + token for token in [*tokens, b"<|endoftext|>"])
    check("tokenizer: tokens in the order of their ids", data[1024:] == body, len(data))


# ---- text.py ----

def test_vocabulary(tokens):
    """The ranks come from the package index where the first address fails; others are refused, and nothing is left."""
    text = write("one.txt", "a the\n")
    done = run("text.py", text, "--out", "out/vocabulary")
    refuses("no vocabulary", "GPT-2's vocabulary cannot be had: file://", done, 1)
    check("no vocabulary: names both sources", "pip cannot download mlx-whisper==0.4.3" in done.stderr, done.stderr)
    check("no vocabulary: nothing is left", not os.path.exists(os.path.join(WORK, "out")), tree(WORK)[:9])
    wrong = write("wrong_ranks", b"YQ== 0\n")
    refuses("another vocabulary", "sha256: expected", run("text.py", text, "--out", "out/vocabulary", RANKS=wrong), 1)
    check("another vocabulary: nothing is left", not os.path.exists(os.path.join(WORK, "out")), "")
    works("vocabulary from the package index", run("text.py", text, "--out", "out/vocabulary", RANKS=os.path.join(WORK, "ranks")))
    equal("the vocabulary is kept", open(os.path.join(DATA, ".cache", "gpt2.tiktoken"), "rb").read(), open(os.path.join(WORK, "ranks"), "rb").read())
    header_of_tokenizer(os.path.join(DATA, "gpt2_tokenizer.bin"), tokens)
    header_of_tokenizer(os.path.join(WORK, "out/vocabulary/gpt2_tokenizer.bin"), tokens)
    with open(os.path.join(DATA, ".cache", "gpt2.tiktoken"), "ab") as file:
        file.write(b"damaged")
    works("a damaged vocabulary is fetched again", run("text.py", text, "--out", "out/again", RANKS=os.path.join(WORK, "ranks")))
    os.remove(os.path.join(DATA, ".cache", "gpt2.tiktoken"))
    spelling = {token[0]: chr(token[0]) if rank < 188 else chr(256 + rank - 188) for rank, token in enumerate(tokens[:256])}
    lines = "".join("".join(spelling[byte] for byte in token) + "\n" for token in tokens[256:])
    cached = "cache/" + hashlib.sha1(("file://" + WORK + "/vocab.bpe").encode()).hexdigest()
    write(cached, "#version: 0.2\n" + lines[:-9])
    refuses("a cache of tiktoken with another vocabulary", "sha256: expected", run("text.py", text, "--out", "out/cache", TIKTOKEN_CACHE_DIR=WORK + "/cache"), 1)
    write(cached, "#version: 0.2\n" + lines)
    works("the vocabulary from tiktoken's cache", run("text.py", text, "--out", "out/cache", TIKTOKEN_CACHE_DIR=WORK + "/cache"))


def test_text():
    """Two files, end-of-text before each; the last fifth validates; shards of 10 tokens, cut wherever they are full."""
    one, two = write("a.txt", "hi the cat\nsat"), write("b.txt", "  then  x\n")
    stream = [EOT, *ids("hi the cat\nsat"), EOT, *ids("  then  x\n")]
    equal("by hand", stream, [EOT, 71, 72, SPACE, THE, SPACE, 66, 64, 83, NEWLINE, 82, 64, 83,
                              EOT, SPACE, SPACE, THE, 77, SPACE, SPACE, 87, NEWLINE])
    done = run("text.py", one, two, "--out", "out/text", "--val-fraction", "0.2", "--shard-tokens", "10", "--workers", "2", "--name", "mine")
    works("text.py", done)
    equal("text.py: files", tree(os.path.join(WORK, "out/text")),
          ["gpt2_tokenizer.bin", "mine_train_000001.bin", "mine_train_000002.bin", "mine_val_000000.bin"])
    names = ["out/text/mine_%s.bin" % name for name in ("train_000001", "train_000002", "val_000000")]
    equal("text.py: shards", [shard(os.path.join(WORK, name)) for name in names], [stream[:10], stream[10:18], stream[18:]])
    check("text.py: says what it wrote", "out/text/mine_train_000002.bin: 8 tokens" in done.stdout, done.stdout)
    refuses("text.py: a file for a folder", "--out %s: expected a folder, found a file" % two, run("text.py", one, "--out", two))
    refuses("text.py: old shards stay", "mine_train_000001.bin: there already", run("text.py", one, "--out", "out/text", "--name", "mine"))
    done = run("text.py", one, "--out", "out/text", "--val-fraction", "0")
    works("text.py: another name", done)
    equal("text.py: no validation, the default name", shard(os.path.join(WORK, "out/text/text_train_000001.bin")), [EOT, *ids("hi the cat\nsat")])
    check("text.py: no validation, as asked", "note:" not in done.stdout, done.stdout)
    check("text.py: no validation", not os.path.exists(os.path.join(WORK, "out/text/text_val_000000.bin")))
    works("text.py: the default's tenth", run("text.py", write("long.txt", "abcdefghi " * 100), "--out", "data/own", cwd=WORK))
    equal("text.py: a tenth", [len(shard(os.path.join(DATA, "own", name))) for name in ("text_train_000001.bin", "text_val_000000.bin")], [901, 100])
    equal("text.py: below data/ the tokenizer is in data/", tree(os.path.join(DATA, "own")), ["text_train_000001.bin", "text_val_000000.bin"])
    big = "the cat, sat\n" * 90000
    works("text.py: more than a chunk", run("text.py", write("big.txt", big), "--out", "out/big", "--val-fraction", "0"))
    check("text.py: chunks are cut where nothing changes", shard(os.path.join(WORK, "out/big/text_train_000001.bin")) == [EOT, *ids(big)])
    runs = "xy" + "ab   " * 250000  # 2^20 characters end between the second and the third space
    works("text.py: runs of spaces", run("text.py", write("runs.txt", runs), "--out", "out/runs", "--val-fraction", "0"))
    check("text.py: no run of spaces is cut, anywhere", shard(os.path.join(WORK, "out/runs/text_train_000001.bin"))[:1000002] == [EOT, 87, 88, *[64, 65, 258, SPACE] * 250000][:1000002])
    works("text.py: line ends", run("text.py", write("crlf.txt", "a\r\nb"), "--out", "out/crlf", "--val-fraction", "0"))
    equal("text.py: line ends stay", shard(os.path.join(WORK, "out/crlf/text_train_000001.bin")), [EOT, 64, 201, NEWLINE, 65])
    refuses("text.py: an empty name", "--files: expected a value, found ''", run("text.py", "", "--out", "out/all"))
    refuses("text.py: nothing to train on", "--val-fraction 1: expected 0 to below 1", run("text.py", one, "--out", "out/all", "--val-fraction", "1"))


def test_folders():
    """Folders stand for their files with an ending, sorted; equal ones once; every third file that is left validates."""
    for name, content in (("b/2.py", "c"), ("a.py", "a"), ("b/1.pyi", "b"), ("b/3.py", "a"), ("b/4.py", b"d\0"), ("b/5.txt", "e"), ("c.py", "f"), ("d.py", "g")):
        write("folder/" + name, content)
    folder = os.path.join(WORK, "folder")
    works("folders", run("text.py", folder, "--endings", ".py,.pyi", "--distinct", "--val-every", "3", "--out", "out/folder"))
    found = [shard(os.path.join(WORK, "out/folder/text_%s.bin" % name)) for name in ("train_000001", "val_000000")]
    equal("folders: a, b, c, f, g, of which c validates", found, [[EOT, 64, EOT, 65, EOT, 69, EOT, 70], [EOT, 66]])
    twice = run("text.py", os.path.join(WORK, "folder/a.py"), os.path.join(WORK, "folder/?.py"), "--distinct", "--val-fraction", "0", "--out", "out/twice")
    works("a file that is named twice", twice)
    equal("a file that is named twice: once", shard(os.path.join(WORK, "out/twice/text_train_000001.bin")), [EOT, 64, EOT, 69, EOT, 70])
    refuses("no file validates", "--val-every 9: of 5 files none validates", run("text.py", folder, "--endings", ".py", "--val-every", "9", "--out", "out/refused"))
    done = run("text.py", folder, "--endings", ".py", "--val-fraction", "0.01", "--out", "out/no_val")
    check("no token validates: said", done.returncode == 0 and "note: none of 10 tokens validates; hint: a larger --val-fraction" in done.stdout, done.stdout)
    works("folders: all", run("text.py", folder, "--endings", ".py", "--val-fraction", "0", "--out", "out/folder_all"))
    equal("folders: one ending, copies too", shard(os.path.join(WORK, "out/folder_all/text_train_000001.bin")), [EOT, 64, EOT, 66, EOT, 64, EOT, 69, EOT, 70])
    refuses("a folder without endings", "folder: Is a directory; hint: --endings", run("text.py", folder, "--out", "out/refused"))
    refuses("every file validates", "--val-every 1: expected 2 or more", run("text.py", folder, "--val-every", "1", "--out", "out/refused"))


def test_json_lines():
    lines = [{"text": "the"}, {"text": ""}, {"other": 1, "text": "a b"}]
    plain = "\n".join(json.dumps(line) for line in lines[:2]) + "\n\n" + json.dumps(lines[2])
    stream = [EOT, THE, EOT, EOT, 64, SPACE, 65]
    packed = gzip.compress(plain.encode())
    for name, content in (("d.jsonl", plain), ("d.jsonl.gz", packed), ("D.ndjson", plain), ("D.NDJSON.gz", packed)):
        works(name, run("text.py", write(name, content), "--out", "out/" + name, "--val-fraction", "0"))
        equal(name + ": a document a line, empty ones too", shard(os.path.join(WORK, "out", name, "text_train_000001.bin")), stream)
    body, plain = write("f.jsonl", '{"body": "th"}\n'), write("g.txt", "b")
    works("--field, between the files", run("text.py", body, "--out", "out/f", "--val-fraction", "0", "--field", "body", plain))
    equal("--field", shard(os.path.join(WORK, "out/f/text_train_000001.bin")), [EOT, TH, EOT, 65])
    many = "".join('{"text": "%s"}\n' % "abcdefg"[i % 7] for i in range(1400))
    works("many lines", run("text.py", write("m.jsonl", many), "--out", "out/m", "--val-fraction", "0", "--workers", "1"))
    equal("many lines, more than a batch", shard(os.path.join(WORK, "out/m/text_train_000001.bin")), [token for i in range(1400) for token in (EOT, 64 + i % 7)])
    for name, content, words in (
            ("no_field.jsonl", '{"text": "a"}\n{"x": 1, "b": 2}\n', "no_field.jsonl:2: expected an object with a text in `text`, found b, x; hint: --field"),
            ("deep.jsonl", '{"text": %s}\n' % ("[" * 100000), "deep.jsonl:1: not a line of JSON: "),
            ("CASE.JSONL", "[1]\n", "CASE.JSONL:1: expected an object with a text in `text`, found list"),
            ("null.jsonl", '{"text": null}\n', "null.jsonl:1: expected an object with a text in `text`, found NoneType there"),
            ("list.jsonl", "[1]\n", "list.jsonl:1: expected an object with a text in `text`, found list"),
            ("broken.jsonl", '{"text": "a"}\n{"text"\n', "broken.jsonl:2: not a line of JSON"),
            ("latin.jsonl", b'{"text": "\xe9"}\n', "latin.jsonl: not UTF-8"),
            ("half.jsonl", '{"text": "a"}\n{"text": "\\ud83d"}\n', r"half.jsonl:2: `text` has \ud83d, half a surrogate pair, which is no character; hint: --replace-invalid"),
            ("cut.jsonl.gz", gzip.compress(plain.encode())[:-12], "cut.jsonl.gz:"),
            ("no.jsonl.gz", b"plain", "no.jsonl.gz:1: not a line of JSON")):
        refuses(name, words, run("text.py", write(name, content), "--out", "out/refused"))
    for name, content in (("half.jsonl", '{"text": "a\\ud83d"}'), ("pair.jsonl", '{"text": "a\ufffd"}')):
        works(name, run("text.py", write(name, content), "--out", "out/" + name, "--val-fraction", "0", "--replace-invalid"))
    equal("half a pair is replaced", *(shard(os.path.join(WORK, "out", name, "text_train_000001.bin")) for name in ("half.jsonl", "pair.jsonl")))
    check("refused lines leave nothing", not os.path.exists(os.path.join(WORK, "out/refused")), tree(WORK)[:9])


def test_globs_and_columns():
    """Plain text, lines and columns in one call; a glob's files are sorted; a row or a line is a document."""
    parquet("mixed/b.parquet", body=["the", "null", "a"], text=["no"] * 3)
    write("mixed/a.jsonl", '{"body": "th"}\n')
    write("mixed/sub/deep/c.txt", "b")
    write("mixed/[d].txt", "d")
    done = run("text.py", "mixed/*.[jp]*", "mixed/**/c.txt", "mixed/[d].txt", "--field", "body", "--out", "out/mixed", "--val-fraction", "0")
    works("globs", done)
    equal("globs: lines, columns, text", shard(os.path.join(WORK, "out/mixed/text_train_000001.bin")), [EOT, TH, EOT, THE, EOT, EOT, 64, EOT, 65, EOT, 67])
    check("no progress where there is no terminal", "%" not in done.stdout + done.stderr and "\r" not in done.stdout + done.stderr, done.stdout)
    refuses("a glob that matches nothing", "mixed/*.csv: no such file, and as a pattern it matches none", run("text.py", "mixed/*.csv", "--out", "out/refused"))
    os.mkfifo(os.path.join(WORK, "pipe.jsonl.gz"))
    refuses("a pipe", "pipe.jsonl.gz: expected a file, found a pipe or a device; hint:", run("text.py", "pipe.jsonl.gz", "--out", "out/refused"))
    refuses("no such column", "b.parquet: no column `title` among body, text; hint: --field", run("text.py", "mixed/b.parquet", "--field", "title", "--out", "out/refused"))
    parquet("numbers.parquet", text=["a", 7])
    refuses("a column of numbers", "numbers.parquet: row 2: expected a text in `text`, found int; hint: --field", run("text.py", "numbers.parquet", "--out", "out/refused"))
    works("a folder with columns", run("text.py", "mixed", "--endings", ".parquet", "--field", "body", "--out", "out/folder_columns", "--val-fraction", "0"))


def trainer(*arguments):
    return subprocess.run([TRAINER, "--device", "cpu", *arguments], cwd=WORK, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


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


def test_refused_text():
    kinds = ((b"PAR1\x15\x04", "parquet, not text; hint: data/text.py reads"), (b"ARROW1\0\0", "arrow"), (b"\x1f\x8b\x08\0", "gzip"),
             (b"\x28\xb5\x2f\xfdxx", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"BZh91AY&SY", "bzip2"), (b"PK\x03\x04", "zip"), (b"%PDF-1", "PDF"),
             (b"\xff\xfea\0", "UTF-16 text"), (b"\xfe\xff\0a", "UTF-16 text"))
    for magic, kind in kinds:
        refuses("text.py, " + kind, "x.txt: looks like " + kind, run("text.py", write("x.txt", magic), "--out", "out/refused"))
    refuses("text.py, null", "x.txt: byte 3 is null", run("text.py", write("x.txt", b"abc\0"), "--out", "out/refused"))
    refuses("text.py, no text", "x.txt: no text in it", run("text.py", write("x.txt", b""), "--out", "out/refused"))
    refuses("text.py, Latin-1", "x.txt: not UTF-8", run("text.py", write("one.txt", "a"), write("x.txt", b"abc \xe9 "), "--out", "out/refused"))
    check("refused text leaves nothing", not os.path.exists(os.path.join(WORK, "out/refused")), "")
    works("BZh is a text", run("text.py", write("x.txt", "BZh ang"), "--out", "out/bzh"))
    works("--replace-invalid", run("text.py", write("x.txt", b"a\xe9"), "--out", "out/replaced", "--replace-invalid", "--val-fraction", "0"))
    equal("--replace-invalid", shard(os.path.join(WORK, "out/replaced/text_train_000001.bin"))[:2], [EOT, 64])


def test_failures():
    """A limit on the size of files stands for a full disk: the first shards fit, a later one does not."""
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); sys.path.insert(0, %r); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')" % DATA
    text = write("full.txt", "ab" * 1000)
    done = subprocess.run([sys.executable, "-c", limited, os.path.join(DATA, "text.py"), text, "--out", "out/full", "--shard-tokens", "500"], cwd=WORK,
                          env=dict(os.environ, PYTHONPATH=STUBS, PYTHONDONTWRITEBYTECODE="1"), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    refuses("a full disk", "File too large", done, 1)
    check("a full disk: nothing is left", not os.path.exists(os.path.join(WORK, "out/full")), tree(WORK)[:9])
    write("out/killed/text_train_000007.bin.partial", b"half")
    works("after a kill", run("text.py", text, "--out", "out/killed"))
    equal("after a kill: its temporary file goes", tree(os.path.join(WORK, "out/killed")), ["gpt2_tokenizer.bin", "text_train_000001.bin", "text_val_000000.bin"])


# ---- the data sets ----

def test_tinyshakespeare():
    with open("data/tinyshakespeare.py", encoding="utf-8") as file:
        source = file.read()
    for fact in ("karpathy/char-rnn/master/data/tinyshakespeare/input.txt", "1115394", "32768",
                 "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", "8a70606be574040c26d225694f5f9759973b419852d22f7fe5c118e1b359dcc8",
                 "fe99db720dc7c83e694806d4e047a952909411da1daccde4ccc2e55f40882a62"):
        check("tinyshakespeare.py: " + fact, source.count(fact) == 1)
    text = "the a:\nb\n\nc the\n\n\n\nd\n"
    stream = [EOT, *ids("the a:\nb\n\n"), EOT, *ids("c the\n\n"), EOT, *ids("\n\n"), EOT, *ids("d\n")]
    expected = {}
    for name, part in (("val", stream[:7]), ("train", stream[7:])):
        expected[name] = hashlib.sha256(struct.pack("<3i", 20240520, 1, len(part)) + bytes(1012) + struct.pack("<%dH" % len(part), *part)).hexdigest()
    path = write("shakespeare.txt", text)
    edit("tinyshakespeare.py", ("1115394", str(len(text))), ("= 32768", "= 7"), ("86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", hashlib.sha256(text.encode()).hexdigest()),
         ("fe99db720dc7c83e694806d4e047a952909411da1daccde4ccc2e55f40882a62", expected["val"]), ("8a70606be574040c26d225694f5f9759973b419852d22f7fe5c118e1b359dcc8", "0" * 64),
         ('"https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"', repr("file://" + WORK + "/web.txt")))
    refuses("tinyshakespeare.py: other shards than llm.c's", "tiny_shakespeare_train.bin: sha256: expected 000", run("tinyshakespeare.py", "--source", path, "--out", "out/ts"), 1)
    check("tinyshakespeare.py: nothing is left, the first shard neither", not os.path.exists(os.path.join(WORK, "out/ts")), "")
    edit("tinyshakespeare.py", ("0" * 64, expected["train"]))
    refuses("tinyshakespeare.py: no network", "hint: a local copy: make TEXT=FILE data/tinyshakespeare, or --source FILE", run("tinyshakespeare.py", "--out", "out/ts"), 1)
    check("tinyshakespeare.py: no network leaves nothing", not os.path.exists(os.path.join(WORK, "out/ts")), "")
    refuses("tinyshakespeare.py: another text", "hint: these shards are of one text; data/text.py takes any", run("tinyshakespeare.py", "--source", write("other.txt", text[::-1]), "--out", "out/ts"))
    done = run("tinyshakespeare.py", "--source", path)
    works("tinyshakespeare.py --source", done)
    says("tinyshakespeare.py: what it writes by default, from where it is called", "data/tinyshakespeare/tiny_shakespeare_val.bin: 7 tokens", done)
    equal("tinyshakespeare.py: shards", [shard(os.path.join(DATA, "tinyshakespeare", "tiny_shakespeare_%s.bin" % name)) for name in ("val", "train")], [stream[:7], stream[7:]])
    write("out/damaged/tiny_shakespeare.txt", text[::-1])
    refuses("tinyshakespeare.py: a damaged text that was there", "hint: without that file it is fetched again", run("tinyshakespeare.py", "--out", "out/damaged"))
    write("web.txt", text)
    done = run("tinyshakespeare.py", "--out", WORK + "/out/ts")
    works("tinyshakespeare.py", done)
    says("tinyshakespeare.py: --out is said as it was typed", WORK + "/out/ts/tiny_shakespeare_val.bin: 7 tokens", done)
    equal("tinyshakespeare.py: files", tree(os.path.join(WORK, "out/ts")), ["gpt2_tokenizer.bin", "tiny_shakespeare.txt", "tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin"])


def archive(path, members):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tarfile.open(path, "w:gz") as file:
        for name, stories in members:
            data = stories if isinstance(stories, bytes) else json.dumps([{"story": story} for story in stories]).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def test_tinystories():
    path = archive(os.path.join(HUB, "roneneldan+TinyStories/TinyStories_all_data.tar.gz"), [("data02.json", ["c"]), ("data00.json", [" the \n", ""]), ("README", b"x"), ("data01.json", ["b\n\na"])])
    val, train = [EOT, THE, EOT], [EOT, 65, NEWLINE, NEWLINE, 64, EOT, 66]
    for name, arguments in (("--source", ("--source", path)), ("the hub", ())):
        out = "out/stories" + name[0]
        works("tinystories.py, " + name, run("tinystories.py", *arguments, "--out", out, "--workers", "1"))
        equal("tinystories.py, " + name, [shard(os.path.join(WORK, out, "TinyStories_%s.bin" % part)) for part in ("val", "train")], [val, train])
        equal("tinystories.py, %s: files" % name, tree(os.path.join(WORK, out)), ["TinyStories_train.bin", "TinyStories_val.bin", "gpt2_tokenizer.bin"])
    works("tinystories.py --keep", run("tinystories.py", "--keep", "--out", "out/kept"))
    check("tinystories.py --keep: the archive stays", os.path.exists(os.path.join(WORK, "out/kept/download/TinyStories_all_data.tar.gz")))
    bad = archive(os.path.join(WORK, "bad.tar.gz"), [("data00.json", ["a"]), ("data01.json", b"[{]")])
    refuses("tinystories.py: a bad second file", "bad.tar.gz: not an archive of stories", run("tinystories.py", "--source", bad, "--out", "out/bad"))
    few = archive(os.path.join(WORK, "few.tar.gz"), [("data00.json", ["a"])])
    refuses("tinystories.py: one file", "expected two or more files of stories (.json), found 1", run("tinystories.py", "--source", few, "--out", "out/bad"))
    check("tinystories.py: failures leave nothing", not os.path.exists(os.path.join(WORK, "out/bad")), "")
    refuses("tinystories.py: a damaged download", "sha256: expected", run("tinystories.py", "--out", "out/damaged", HUB_DAMAGES="TinyStories_all_data.tar.gz"))
    write("out/kept/TinyStories_val.bin", b"half")
    refuses("tinystories.py: a damaged shard", "TinyStories_val.bin: header: expected magic", run("tinystories.py", "--source", path, "--out", "out/kept"))


def parquet(path, **columns):
    return write(path, json.dumps(columns))


def test_fineweb():
    """Five documents in three files, shards of 4 tokens: a border in the middle of a document, one at its end."""
    files = {"001.parquet": ["the a", "null"], "002.parquet": ["b", "cd"], "003.parquet": ["the"]}
    stream = [EOT, THE, SPACE, 64, EOT, EOT, 65, EOT, 66, 67, EOT, THE]
    for name, texts in files.items():
        parquet("pq/" + name, text=texts, url=["x"] * len(texts))
        parquet("hub/HuggingFaceFW+fineweb/sample/10BT/" + name, text=texts)
        parquet("hub/HuggingFaceFW+fineweb-edu/sample/100BT/" + name, text=texts)
    parquet("hub/HuggingFaceFW+fineweb/data/other.parquet", text=["no"])
    shards = [stream[:4], stream[4:8], stream[8:]]
    ways = (("--source", "fineweb", ("--source", "pq")), ("the hub", "fineweb", ()), ("edu100B", "edu_fineweb", ("--version", "edu100B")))
    for name, prefix, arguments in ways:
        out = os.path.join(WORK, "out/" + name)
        works("fineweb.py, " + name, run("fineweb.py", *arguments, "--out", out, "--shard-tokens", "4", "--workers", "2"))
        names = ["%s_val_000000.bin" % prefix, "%s_train_000001.bin" % prefix, "%s_train_000002.bin" % prefix]
        equal("fineweb.py, %s: files, downloads gone" % name, tree(out), sorted([*names, "gpt2_tokenizer.bin", "state.json"]))
        equal("fineweb.py, " + name, [shard(os.path.join(out, file)) for file in names], shards)
    done = run("fineweb.py", "--source", "pq", "--out", "out/--source", "--shard-tokens", "4")
    check("fineweb.py: a complete one is left as it is", done.returncode == 0 and "is complete: 3 shards" in done.stdout, done.stdout + done.stderr)
    refuses("fineweb.py: other settings", "made with other settings", run("fineweb.py", "--source", "pq", "--out", "out/--source", "--shard-tokens", "5"))
    works("fineweb.py: the default folder", run("fineweb.py", "--max-shards", "2", "--shard-tokens", "4", "--keep"))
    check("fineweb.py: is data/fineweb10B", os.path.exists(os.path.join(DATA, "fineweb10B/fineweb_val_000000.bin")), tree(DATA))
    # the second shard ends in the second file: the first one is not needed any more
    check("fineweb.py --keep", os.path.exists(os.path.join(DATA, "fineweb10B/download/sample/10BT/001.parquet")), tree(DATA))
    resumed(shards)


def resumed(shards):
    """One shard a call ends with the same shards; so does a run whose state was lost on the way to the second."""
    out = os.path.join(WORK, "out/one by one")
    for count in (1, 2, 3, 4):
        works("fineweb.py, call %d" % count, run("fineweb.py", "--source", "pq", "--out", out, "--shard-tokens", "4", "--max-shards", str(count)))
        equal("fineweb.py, call %d: shards" % count, len([name for name in tree(out) if "_0000" in name]), min(count, 3))
    equal("fineweb.py, one shard a call", [shard(os.path.join(out, name)) for name in ("fineweb_val_000000.bin", "fineweb_train_000001.bin", "fineweb_train_000002.bin")], shards)
    letters = [token for i in range(600) for token in (EOT, 64 + i % 26)]
    parquet("letters/1.parquet", text=["abcdefghijklmnopqrstuvwxyz"[i % 26] for i in range(600)])
    for count in (1, 2, 3):
        works("fineweb.py, letters, call %d" % count, run("fineweb.py", "--source", "letters", "--out", "out/letters", "--shard-tokens", "551", "--max-shards", str(count)))
    names = ["out/letters/fineweb_%s.bin" % name for name in ("val_000000", "train_000001", "train_000002")]
    equal("fineweb.py, more documents than a batch", [token for name in names for token in shard(os.path.join(WORK, name))], letters)
    write("out/one by one/state.json", "{")
    refuses("fineweb.py: a damaged state", "state.json is damaged", run("fineweb.py", "--source", "pq", "--out", out, "--shard-tokens", "4"))
    os.remove(os.path.join(out, "state.json"))
    refuses("fineweb.py: shards without a state", "there already", run("fineweb.py", "--source", "pq", "--out", out, "--shard-tokens", "4"))
    done = run("fineweb.py", "--source", "pq", "--out", "out/large")
    check("fineweb.py: all in the validation shard is said", "note: all of it is in the validation shard" in done.stdout, done.stdout)
    parquet("column/1.parquet", body=["x"], id=["y"])
    refuses("fineweb.py: no text column", "1.parquet: no column `text` among body, id", run("fineweb.py", "--source", "column", "--out", "out/column"))
    write("broken/1.parquet", "x")
    refuses("fineweb.py: no parquet", "1.parquet: not parquet", run("fineweb.py", "--source", "broken", "--out", "out/column"))
    check("fineweb.py: failures leave nothing", not os.path.exists(os.path.join(WORK, "out/column")), "")
    refuses("fineweb.py: no parquet there", "HuggingFaceFW/fineweb-edu: no parquet files in sample/10BT/", run("fineweb.py", "--version", "edu10B", "--out", "out/column"), 1)
    refuses("fineweb.py: no such data set", "Hugging Face, dataset HuggingFaceFW/fineweb: RuntimeError: no such dataset: HuggingFaceFW/fineweb at r1; hint: a local copy, as --source",
            run("fineweb.py", "--out", "out/column", HUB="/nowhere"), 1)
    check("fineweb.py: no data set leaves nothing", not os.path.exists(os.path.join(WORK, "out/column")), "")


def test_pretokenized():
    root = os.path.join(HUB, "kjj0+fineweb10B-gpt2")
    for name in ("fineweb_val_000000.bin", "fineweb_train_000001.bin", "fineweb_train_000002.bin"):
        write(os.path.join(root, name), struct.pack("<3i", 20240520, 1, 3) + bytes(1012) + bytes(6))
    write(os.path.join(root, "README.md"), "x")
    done = run("fineweb.py", "--pretokenized", "--max-shards", "2", "--out", WORK + "/out/pre")
    works("fineweb.py --pretokenized", done)
    says("fineweb.py --pretokenized: --out is said as it was typed", WORK + "/out/pre/fineweb_val_000000.bin: complete", done)
    equal("fineweb.py --pretokenized: validation first", tree(os.path.join(WORK, "out/pre")), ["fineweb_train_000001.bin", "fineweb_val_000000.bin", "gpt2_tokenizer.bin"])
    write(os.path.join(root, "fineweb_train_000001.bin"), struct.pack("<3i", 20240520, 1, 4) + bytes(1012) + bytes(6))
    refuses("fineweb.py --pretokenized: a bad header", "fineweb_train_000001.bin: header", run("fineweb.py", "--pretokenized", "--out", "out/pre2"))


def test_hellaswag():
    """Items of the form of the public file, written by hand; the same tokens by hand."""
    lines = [{"ind": 24, "activity_label": "x", "ctx_a": "the", "ctx_b": "", "ctx": "a the", "split": "val", "label": 3,
              "endings": ["the", "b", "", "th"], "source_id": "s"},
             {"ctx": "the", "label": "0", "endings": ["a", "b", "c", "d"]}]
    text = "\n".join(map(json.dumps, lines)) + "\n\n"
    first = [3, 64, SPACE, THE, 2, SPACE, THE, 2, SPACE, 65, 1, SPACE, 2, SPACE, TH]
    second = [1, THE, 2, SPACE, 64, 2, SPACE, 65, 2, SPACE, 66, 2, SPACE, 67]
    stream = [65535, 40, 0, 3, 4, *first, 65535, 38, 1, 0, 4, *second]
    packed = gzip.compress(text.encode())
    for name, content in (("h.jsonl", text), ("h.jsonl.gz", packed), ("H.JSONL.GZ", packed)):
        done = run("hellaswag.py", "--source", write(name, content), "--out", "out/" + name)
        works(name, done)
        check(name + ": says how many", "hellaswag_val.bin: 2 items, 19 tokens" in done.stdout, done.stdout)
        with open(os.path.join(WORK, "out", name, "hellaswag_val.bin"), "rb") as file:
            data = file.read()
        equal(name + ": header", data[:1024], struct.pack("<5i", 20240522, 1, 2, 40, 50257) + bytes(1004))
        equal(name + ": items", list(struct.unpack("<%dH" % len(stream), data[1024:])), stream)
    done = run("hellaswag.py", "--source", write("h.jsonl", text), "--tokenizer", "bytes", "--out", WORK + "/out/h")
    works("bytes", done)
    says("hellaswag.py: --out is said as it was typed", WORK + "/out/h/hellaswag_val.bin: 2 items", done)
    with open(os.path.join(WORK, "out/h/hellaswag_val.bin"), "rb") as file:
        data = file.read()
    equal("bytes: vocabulary", struct.unpack("<i", data[16:20]), (256,))
    equal("bytes: context", list(struct.unpack("<6H", data[1034:1046])), [5, *b"a the"])
    works("one's own", run("hellaswag.py", "--source", "h.jsonl", "--tokenizer", "own tokenizer", "--out", "out/h_own"))
    with open(os.path.join(WORK, "out/h_own/hellaswag_val.bin"), "rb") as file:
        data = file.read()
    equal("one's own: vocabulary", struct.unpack("<i", data[16:20]), (264,))
    equal("one's own: a context and an ending", list(struct.unpack("<5H", data[1034:1044])), [2, 64, 259, 1, 259])
    refuses("hellaswag.py: no such tokenizer", "none/: No such file", run("hellaswag.py", "--source", "h.jsonl", "--tokenizer", "none/", "--out", "out/none"))
    for name, words in (('{"ctx": "a"}', "x.jsonl:1: expected four texts in `endings`, found None"), ("[1]", "expected an object, found list"),
                        ('{"ctx": "", "endings": ["a", "b", "c", "d"], "label": 1}', "expected a text in `ctx`"),
                        ('{"ctx": "a", "endings": ["a", "b", "c"], "label": 1}', "expected four texts"),
                        ('{"ctx": "a", "endings": ["a", "b", "c", "d"], "label": ""}', "hint: the test set has no labels"),
                        ('{"ctx"', "x.jsonl:1: not a line of JSON"), ("\n", "x.jsonl: no items in it")):
        refuses("hellaswag.py, " + name, words, run("hellaswag.py", "--source", write("x.jsonl", name), "--tokenizer", "bytes", "--out", "out/refused"))
    check("refused items leave nothing", not os.path.exists(os.path.join(WORK, "out/refused")), "")
    edit("hellaswag.py", ('"https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"', repr("file://" + WORK + "/web.jsonl")))
    refuses("hellaswag.py: no network", "hint: a local copy, as --source FILE", run("hellaswag.py", "--out", "out/web"), 1)
    write("web.jsonl", text)
    works("hellaswag.py: from its address", run("hellaswag.py", "--out", "out/web"))
    equal("hellaswag.py: files", tree(os.path.join(WORK, "out/web")), ["hellaswag_val.bin", "hellaswag_val.jsonl"])


def test_signal():
    """SIGTERM: one line, exit 130, nothing half-written."""
    os.makedirs(os.path.join(WORK, "slow"))
    os.mkfifo(os.path.join(WORK, "slow/1.parquet"))  # nobody writes: reading it waits
    env = dict(os.environ, PYTHONPATH=STUBS, PYTHONDONTWRITEBYTECODE="1", HUB=HUB)
    child = subprocess.Popen([sys.executable, os.path.join(DATA, "fineweb.py"), "--source", "slow", "--out", "out/ended"], cwd=WORK, env=env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not os.path.exists(os.path.join(WORK, "out/ended")) and child.poll() is None:
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    said = child.communicate(timeout=600)[1]
    check("SIGTERM", child.returncode == 130 and said.count("\n") == 1 and "interrupted" in said, "%d: %s" % (child.returncode, said))
    check("SIGTERM: nothing is left", not os.path.exists(os.path.join(WORK, "out/ended")), tree(WORK)[:9])


def test_trainer():
    """The trainer reads what the scripts write, from another folder, with the tokenizer that lies there."""
    done = subprocess.run([TRAINER, "--device", "cpu", "--layers", "1", "--heads", "2", "--channels", "16", "--batch", "1", "--seq", "8", "--steps", "1",
                           "--warmup", "0", "--sample-tokens", "1", "--train", os.path.join(DATA, "own/text_train_*.bin"), "--prompt", "the"],
                          cwd=HUB, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    check("the trainer: tokens", "1 shard, 901 tokens (uint16)" in done.stdout, done.stdout)
    check("the trainer: tokenizer", "bpe of 50257 tokens, beside the shards: %s/own/../gpt2_tokenizer.bin" % DATA in done.stdout, done.stdout)


def main():
    tokens = set_up()
    test_vocabulary(tokens)
    test_text()
    test_folders()
    test_json_lines()
    test_globs_and_columns()
    test_train_tokenizer()
    test_refused_text()
    test_failures()
    test_tinyshakespeare()
    test_tinystories()
    test_fineweb()
    test_pretokenized()
    test_hellaswag()
    test_signal()
    test_trainer()
    print("data: %d passed, %d failed, 0 skipped" % (passed, failed))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
