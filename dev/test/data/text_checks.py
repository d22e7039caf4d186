"""data/text.py: the vocabulary it needs, plain text, folders, lines of JSON, columns, and what it refuses."""
import fcntl
import gzip
import hashlib
import json
import os
import struct

from data_case import (DATA, EOT, NEWLINE, SPACE, STUBS, TH, THE, WORK, check, equal, ids, parquet, refuses, run, run_on_full_disk, shard, tree,
                       works, write)


def header_of_tokenizer(path, tokens):
    with open(path, "rb") as file:
        data = file.read()
    equal("tokenizer: header", data[:1024], struct.pack("<4I", 20240328, 2, 50257, 50256) + bytes(1008))
    body = b"".join(bytes([len(token)]) + token for token in [*tokens, b"<|endoftext|>"])
    check("tokenizer: tokens in the order of their ids", data[1024:] == body, len(data))


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
    works("text.py: more validates than a shard holds", run("text.py", one, two, "--out", "out/most", "--val-fraction", "0.6", "--shard-tokens", "10"))
    names = ["text_%s.bin" % name for name in ("train_000001", "val_000000", "val_000001")]
    equal("text.py: validation is cut into shards, too", tree(os.path.join(WORK, "out/most")), ["gpt2_tokenizer.bin", *names])
    equal("text.py: its shards", [shard(os.path.join(WORK, "out/most", name)) for name in names], [stream[:9], stream[9:19], stream[19:]])
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
            ("damaged.jsonl.gz", packed[:12] + bytes([packed[12] ^ 255]) + packed[13:], "damaged.jsonl.gz:1: not a line of JSON"),
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
    """On a full disk the first shards fit, a later one does not; a folder that another script writes into; a killed script."""
    text = write("full.txt", "ab" * 1000)
    done = run_on_full_disk("text.py", text, "--out", "out/full", "--shard-tokens", "500")
    refuses("a full disk", "gpt2_tokenizer.bin: File too large", done, 1)
    check("a full disk: nothing is left", not os.path.exists(os.path.join(WORK, "out/full")), tree(WORK)[:9])
    write("out/killed/text_train_000007.bin.partial", b"half")
    works("after a kill", run("text.py", text, "--out", "out/killed"))
    equal("after a kill: its temporary file goes", tree(os.path.join(WORK, "out/killed")), ["gpt2_tokenizer.bin", "text_train_000001.bin", "text_val_000000.bin"])
    write("ctrl_c/sitecustomize.py", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")  # of the processes that tokenise: this one has begun
    works("ctrl-C as a process begins", run("text.py", text, "--workers", "1", "--out", "out/begun", PYTHONPATH=os.path.join(WORK, "ctrl_c") + os.pathsep + STUBS))
    before = tree(os.path.join(WORK, "out/killed"))
    write("out/killed/data.lock", b"")
    with open(os.path.join(WORK, "out/killed/data.lock"), "r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        for script, *words in (("text.py", text, "--name", "other"), ("train_tokenizer.py", text), ("hellaswag.py",), ("fineweb.py",), ("tinystories.py",),
                               ("tinyshakespeare.py",)):
            refuses("two at once, " + script, "--out out/killed: another script is writing there; hint: ", run(script, *words, "--out", "out/killed"))
        equal("two at once: the second leaves nothing", tree(os.path.join(WORK, "out/killed")), ["data.lock", *before])
    works("the first one is killed", run("text.py", text, "--out", "out/killed", "--name", "other"))
    equal("the first one is killed: no lock is left", [name for name in tree(os.path.join(WORK, "out/killed")) if "lock" in name], [])
