"""The scripts that download: tinyshakespeare.py, tinystories.py, fineweb.py, hellaswag.py; here from a stand-in, or from --source."""
import gzip
import hashlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
import time

from data_case import (DATA, EOT, HUB, NEWLINE, SPACE, STUBS, TH, THE, WORK, check, edit, equal, ids, parquet, refuses, run, run_on_full_disk,
                       says, shard, tree, works, write)


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
    let_go()
    resumed(shards)


def let_go():
    """--keep leaves what a kill between the state and the removal leaves: the next call removes it, and what it still needs stays."""
    def downloads():
        return [name for name in tree(os.path.join(WORK, "out/left")) if name.endswith(".parquet")]

    way = ("fineweb.py", "--out", "out/left", "--shard-tokens", "4", "--max-shards")
    works("fineweb.py: two shards", run(*way, "2", "--keep"))
    check("fineweb.py: the file of the finished shards is there", "download/sample/10BT/001.parquet" in downloads(), downloads())
    works("fineweb.py: no shard more", run(*way, "2"))
    check("fineweb.py: a file that no shard needs goes", "download/sample/10BT/001.parquet" not in downloads(), downloads())
    check("fineweb.py: a file that the next shard needs stays", "download/sample/10BT/002.parquet" in downloads(), downloads())
    works("fineweb.py: all shards", run(*way, "9", "--keep"))
    check("fineweb.py: the others are there", len(downloads()) == 2, downloads())
    works("fineweb.py: it is complete", run(*way, "9"))
    equal("fineweb.py: of a complete one no download is left", downloads(), [])


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
    parquet("long/1.parquet", text=["ab" * 1000])
    refuses("fineweb.py: no room for the only shard", "File too large", run_on_full_disk("fineweb.py", "--source", "long", "--out", "out/long"), 1)
    works("fineweb.py: then there is", run("fineweb.py", "--source", "long", "--out", "out/long"))
    equal("fineweb.py: it is written then", [len(shard(os.path.join(WORK, "out/long", name))) for name in tree(os.path.join(WORK, "out/long")) if "_0000" in name], [2001])
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
    mine = write("out/pre3/fineweb_val_000000.bin", "mine")
    refuses("fineweb.py --pretokenized: somebody's shard", "fineweb_val_000000.bin: size: expected", run("fineweb.py", "--pretokenized", "--out", WORK + "/out/pre3"))
    with open(mine, "rb") as file:
        equal("fineweb.py --pretokenized: it stays", file.read(), b"mine")
    before = tree(os.path.join(WORK, "out/the hub"))
    refuses("fineweb.py --pretokenized: shards from parquet", "out/the hub/state.json: the shards there are made from parquet", run("fineweb.py", "--pretokenized", "--out", "out/the hub"))
    equal("fineweb.py --pretokenized: they stay", tree(os.path.join(WORK, "out/the hub")), before)


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
    works("bytes, again", run("hellaswag.py", "--source", "h.jsonl", "--tokenizer", "bytes", "--out", "out/h"))
    write("other.jsonl", json.dumps(lines[0]))
    for name, *words in (("other tokens", "--source", "h.jsonl"), ("other items", "--source", "other.jsonl", "--tokenizer", "bytes")):
        refuses("hellaswag.py: there already, in " + name, "out/h/hellaswag_val.bin: there already, of other items", run("hellaswag.py", *words, "--out", "out/h"))
    with open(os.path.join(WORK, "out/h/hellaswag_val.bin"), "rb") as file:
        equal("hellaswag.py: it stays", file.read(), data)
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
                        ('{"ctx": "a\\ud800", "endings": ["a", "b", "c", "d"], "label": 1}', "x.jsonl:1: \\ud800 is half a surrogate pair"),
                        ('{"ctx"', "x.jsonl:1: not a line of JSON"), ("\n", "x.jsonl: no items in it")):
        refuses("hellaswag.py, " + name, words, run("hellaswag.py", "--source", write("x.jsonl", name), "--tokenizer", "bytes", "--out", "out/refused"))
    damaged = bytearray(packed)
    damaged[12] ^= 255
    refuses("hellaswag.py, a damaged .gz", "damaged.jsonl.gz:1: not a line of JSON", run("hellaswag.py", "--source", write("damaged.jsonl.gz", bytes(damaged)), "--out", "out/refused"))
    check("refused items leave nothing", not os.path.exists(os.path.join(WORK, "out/refused")), "")
    with open("data/hellaswag.py", encoding="utf-8") as file:
        check("hellaswag.py: how many items there are", "\nITEMS = 10042 " in file.read())
    edit("hellaswag.py", ("ITEMS = 10042", "ITEMS = 2"), ('"https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"', repr("file://" + WORK + "/web.jsonl")))
    refuses("hellaswag.py: no network", "hint: a local copy, as --source FILE", run("hellaswag.py", "--out", "out/web"), 1)
    for name, content, words in (("a line is missing", json.dumps(lines[0]) + "\n", "web.jsonl: expected 2 items, found 1; hint: a local copy"),
                                 ("the last line is cut", text[:-10], "web.jsonl:2: not a line of JSON")):
        write("web.jsonl", content)
        refuses("hellaswag.py: a download of which " + name, words, run("hellaswag.py", "--out", "out/web"))
        check("hellaswag.py: it is not kept: " + name, not os.path.exists(os.path.join(WORK, "out/web")))
    write("web.jsonl", text)
    works("hellaswag.py: from its address", run("hellaswag.py", "--out", "out/web"))
    works("hellaswag.py: the same call again", run("hellaswag.py", "--out", "out/web"))
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
