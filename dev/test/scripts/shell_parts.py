"""The shell scripts of scripts/, with stand-ins for the trainer and the network; and make_unicode_classes.py."""
import hashlib
import io
import os
import re
import shutil
import subprocess
import time
import unicodedata
from contextlib import redirect_stdout

from parts import ROOT, SCRIPTS, Parts

import make_unicode_classes

# A stand-in for ./train_gpt2cu: notes its words, writes a log of --steps steps: 1 s, 990 ms, then 101 to 141 ms in another order.
TRAINER = """#!/bin/sh
[ "$1" != --version ] || { echo 'train_gpt2 0123abc'; exit; }
echo "$*" >>words
while [ $# -gt 0 ]; do
    [ "$1" = --out ] && out=$2
    [ "$1" = --steps ] && steps=$2
    shift
done
mkdir -p "$out"
awk -v n="$steps" 'BEGIN { for (i = 1; i <= n; i++) {
    ms = i == 1 ? 1000 : i == 2 ? 990 : 100 + (i - 2) * 7 % 41
    printf "{\\"step\\": %d, \\"ms\\": %d, \\"tok_s\\": %d, \\"mfu\\": 0.5}\\n", i, ms, 1000 * ms } }' >"$out/log.jsonl"
echo 'memory: planned 1.0 GiB, measured 2.0 GiB'
"""
# A stand-in for curl: the file $DOWNLOAD to what follows -o, or the refusal of a server.
CURL = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
[ -n "$DOWNLOAD" ] || { echo 'no route to host'; exit 6; }
cp "$DOWNLOAD" "$out"
"""


class Scripts(Parts):
    """A tree of its own for scripts/, with its own programs first on the path."""

    def setUp(self):
        super().setUp()
        shutil.copytree(SCRIPTS, self.path("scripts"), ignore=shutil.ignore_patterns("*.png", "__pycache__"))
        os.mkdir(self.path("bin"))

    def run_shell(self, name, *words, **environment):
        path = self.path("bin") + os.pathsep + os.environ["PATH"]
        kept = {key: value for key, value in os.environ.items() if key not in ("TEXT", "MODEL", "FLAGS")}
        return subprocess.run(["sh", os.path.join("scripts", name), *words], cwd=self.folder, text=True, capture_output=True,
                              env={**kept, "PATH": path, **environment}, check=False)


class Bench(Scripts):
    def setUp(self):
        super().setUp()
        self.file("scripts/random_shard.py", "import sys; open(sys.argv[1], 'w').close()\n")  # the shard has its own test

    def test_the_table(self):
        self.program("train_gpt2cu", TRAINER)
        done = self.run_shell("bench_train.sh", "4,16", "2,1024", FLAGS="--device cpu --graph off", MODEL="d24")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.splitlines()
        self.assertTrue(lines[0].endswith("; train_gpt2 0123abc"), lines[0])
        self.assertEqual(lines[1], "d24, median of the steps after 1 s of at least 6.5 s (--device cpu --graph off --optimizer adamw)")
        times = [1000, 990] + [100 + i * 7 % 41 for i in range(1, 1000)]
        n = 1 + 6500 // min(times[2:12])  # the first run has 12 steps
        timed = sorted(times[3:n])  # the first, and a second that the two after it take, are left out
        expected = [f"{timed[len(timed) // 2]:.2f}", str(1000 * timed[len(timed) // 2]), "50.0", f"{sum(timed) / 1000:.1f}", "1.0", "GiB,",
                    "2.0", "GiB"]
        self.assertEqual([line.split() for line in lines[3:]], [[*shape, *expected] for shape in (("4", "16"), ("2", "1024"))])
        words = self.text("words").split("\n")
        self.assertRegex(words[0], r"^--model d24 --train \S*/bench_train_\*.bin --batch 4 --seq 16 --tokens-per-step 64 --device cpu --graph "
                         r"off --optimizer adamw --steps 12 --sample-tokens 0 --eval-every 0 --out \S* --model-only$")
        self.assertIn(f" --steps {n} ", words[1])

    def test_shapes(self):
        self.program("train_gpt2cu", TRAINER)
        for shape in ("1,2,3", "x1,2", "1,2x", "1, 2", "01,2", "1,0", "0,64", "64x1024", "64,", ",64", "a,b", "64"):
            done = self.run_shell("bench_train.sh", "4,16", shape, FLAGS="--device cpu")
            self.assertEqual((done.returncode, done.stderr), (2, f"error: expected B,T, as 64,1024; found '{shape}'\n"))

    def test_help(self):
        self.assertRegex(self.run_shell("bench_train.sh", "--help").stdout, "(?m)^Usage: .*B,T")

    def test_a_machine_without_a_card(self):
        self.program("train_gpt2cu", TRAINER)
        self.program("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        done = self.run_shell("bench_train.sh", "1,64")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertRegex(done.stderr, "^error: no NVIDIA GPU on this machine; hint: ")

    def test_the_trainer_that_is_built(self):
        done = self.run_shell("bench_train.sh", "4,16", FLAGS="--device cpu")
        self.assertEqual((done.returncode, done.stderr), (2, "error: ./train_gpt2cu is missing; hint: make train_gpt2cu\n"))
        self.program("train_gpt2", TRAINER)
        done = self.run_shell("bench_train.sh", "4,16", FLAGS="--device cpu")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_trainer_that_fails(self):
        self.program("train_gpt2cu", "#!/bin/sh\n[ $1 = --version ] || { echo 'error: no' >&2; exit 1; }\n")
        done = self.run_shell("bench_train.sh", "4,16", FLAGS="--device cpu")
        self.assertEqual((done.returncode, done.stderr), (1, "error: no\n"))

    def test_an_end_by_a_signal_ends_the_trainer(self):
        self.program("train_gpt2cu", "#!/bin/sh\n[ $1 = --version ] || { echo $$ >pid; exec sleep 600; }\n")
        environment = {**os.environ, "FLAGS": "--device cpu", "TMPDIR": self.path("bin")}
        process = subprocess.Popen(["sh", "scripts/bench_train.sh", "4,16"], cwd=self.folder, env=environment, stdout=subprocess.DEVNULL)
        while not (os.path.exists(self.path("pid")) and self.text("pid")):
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        process.terminate()
        self.assertEqual(process.wait(300), 143)
        with self.assertRaises(ProcessLookupError):
            os.kill(int(self.text("pid")), 0)
        self.assertEqual(os.listdir(self.path("bin")), [])


class Measure(Scripts):
    def test_what_cannot_be_used(self):
        for words, name, *arguments in (("expected attention or train, found 'other'", "measure.sh", "other", self.folder),
                                        ("/none': no such folder", "measure.sh", "train", self.path("none")),
                                        ("expected a folder and two shards", "measure_trainer.sh", self.folder, "none", "none")):
            done = self.run_shell(name, *arguments)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
            self.assertRegex(done.stderr, "^error: .*" + words)

    def test_a_run_that_fails(self):
        """What comes behind it is measured, and the exit code says it."""
        self.program("bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: a card'\n")
        self.program("bin/python3", "#!/bin/sh\necho \"$*\" >>said\ncase $* in *$BAD*) exit 1 ;; esac\n")
        os.mkdir(self.path("out"))
        for bad, code, kind, commands in (("card0_run1", 1, "attention", 3), ("nothing", 0, "attention", 3), ("card0_all", 1, "train", 2)):
            done = self.run_shell("measure.sh", kind, "out", BAD=bad)
            self.assertEqual((done.returncode, "note: not all of a card's runs ended well" in done.stderr), (code, code == 1), done.stderr)
            self.assertEqual(len(self.text("said").splitlines()), commands, "the comparison's runs, and the table of them")
            os.remove(self.path("said"))

    def test_a_program_that_is_missing(self):
        self.program("bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: a card'\n")
        shard = self.file("a.bin", "")
        os.mkdir(self.path("out"))
        done = self.run_shell("measure_trainer.sh", "out", shard, shard)
        self.assertEqual((done.returncode, done.stderr.count("note: a part of the runs failed")), (1, 2), done.stderr)


class DefaultText(Scripts):
    def setUp(self):
        super().setUp()
        for name in ("README.md", "Makefile", "train_gpt2.cu", "llmc/a/a.h", "llmc/a/a.c", "llmc/cpu/b.c", "llmc/cuda/d/c.cu"):
            self.file(name, f"{name} itself\n")
        self.program("bin/curl", CURL)

    def text_of(self, **environment):
        done = self.run_shell("default_text.sh", **{"DOWNLOAD": "", **environment})
        source = self.path("data", "default.source.txt")
        return done, self.text("data", "default.txt"), self.text("data", "default.source.txt") if os.path.exists(source) else None

    def known(self, text):
        """As if this were TinyShakespeare: its size and checksum in the script."""
        script = self.text("scripts", "default_text.sh")
        script = re.sub(r"(?m)^size=.*$", f"size={len(text)}", script)
        script = re.sub(r"(?m)^sha256=.*$", f"sha256={hashlib.sha256(text.encode()).hexdigest()}", script)
        self.file("scripts/default_text.sh", script)
        return self.file("download", text)

    def test_the_network(self):
        done, text, source = self.text_of(DOWNLOAD=self.known("to be or not\n"))
        self.assertEqual((done.returncode, text, source), (0, "to be or not\n", "TinyShakespeare (sha256 ok)\n"))
        done, text, source = self.text_of(DOWNLOAD="")
        self.assertEqual((done.stdout, done.stderr, text), ("", "", "to be or not\n"), "what is there stays")

    def test_no_network(self):
        done, text, source = self.text_of()
        self.assertEqual((done.returncode, source), (0, "the project's own sources and README (TinyShakespeare could not be had)\n"))
        self.assertEqual(text, "".join(f"{name} itself\n" for name in (
            "README.md", "Makefile", "train_gpt2.cu", "llmc/a/a.h", "llmc/a/a.c", "llmc/cpu/b.c", "llmc/cuda/d/c.cu")))
        self.assertRegex(done.stderr, r"could not be had: no route to host\n")
        done, text, source = self.text_of(DOWNLOAD=self.known("to be or not\n"))
        self.assertEqual(source, "TinyShakespeare (sha256 ok)\n", "replaced once it can be had")

    def test_a_download_that_is_another(self):
        for found, why in (("to be or", "expected 13 bytes, found 8"), ("to be or nit\n", "expected sha256 [0-9a-f]{64}, found")):
            self.known("to be or not\n")
            done, text, source = self.text_of(DOWNLOAD=self.file("download", found))
            self.assertRegex(done.stderr, why)
            self.assertTrue(text.startswith("README.md itself"))
        self.assertEqual(sorted(os.listdir(self.path("data"))), ["default.source.txt", "default.txt"])

    def test_a_text_of_the_users(self):
        self.known("to be or not\n")
        mine = self.file("mine.txt", "mine\n")
        done, text, source = self.text_of(TEXT=mine)
        self.assertEqual((done.returncode, text, source), (0, "mine\n", f"TEXT={mine}\n"))
        self.file("mine.txt", "mine, changed\n")
        self.assertEqual(self.text_of(TEXT=mine)[1], "mine, changed\n")
        done, text, source = self.text_of(TEXT=mine)
        self.assertEqual(done.stdout, "", "the same again: nothing is done")
        self.assertEqual(self.text_of()[1], "mine, changed\n", "it stays")

    def test_a_text_that_nothing_describes(self):
        """Somebody put it there: it stays, and TEXT keeps it under another name."""
        self.file("data/default.txt", "my novel\n")
        done, text, source = self.text_of(DOWNLOAD=self.known("to be or not\n"))
        self.assertEqual((done.returncode, done.stdout, done.stderr, text, source), (0, "", "", "my novel\n", None))
        done, text, source = self.text_of(TEXT=self.file("mine.txt", "mine\n"))
        self.assertEqual((done.returncode, text, self.text("data", "default.yours.1.txt")), (0, "mine\n", "my novel\n"))
        self.assertIn("note: data/default.txt was your own; kept as data/default.yours.1.txt\n", done.stdout)

    def test_what_cannot_be_used(self):
        self.file("empty", "")
        for name, words in (("none", "expected a readable file"), ("empty", "the file is empty"), ("scripts", "expected a readable file")):
            done = self.run_shell("default_text.sh", TEXT=name)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, f"^error: TEXT={name}: {words}[^\n]*\n$")
            self.assertEqual(os.listdir(self.path("data")), [])

    def test_what_it_is_told_of_tinyshakespeare(self):
        script = self.text("scripts", "default_text.sh")
        with open(os.path.join(ROOT, "data", "tinyshakespeare.py"), encoding="utf-8") as file:
            other = file.read()
        size, digest, url = (re.search(rf"(?m)^{name}=(\S+)$", script)[1] for name in ("size", "sha256", "url"))
        for text in (f"SIZE = {size}\n", f'SHA256 = "{digest}"\n', f'URL = "{url}"\n'):
            self.assertIn(text, other)


class Recipe(Scripts):
    def test_the_flags_are_the_recipe(self):
        self.program("train_gpt2cu", '#!/bin/sh\nprintf "%s\\n" "$@"\n')
        self.file("train_gpt2.cu", "")
        for name in ("train_000001", "val_000000"):
            self.file(f"data/fineweb10B/fineweb_{name}.bin", "")
        self.program("bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: a card'\n")
        done = self.run_shell("run_gpt2_124M.sh", "--seed", "7")
        self.assertEqual(done.returncode, 0, done.stderr)
        said = [line for line in done.stdout.splitlines() if line.startswith("recipe llm.c, but ")]
        words = done.stdout.splitlines()[len(said):]
        self.assertEqual(words[-2:], ["--seed", "7"])
        words.remove("--resume")
        flags = dict(zip(words[0::2], words[1::2]))
        self.assertEqual(flags, {
            "--recipe": "llm.c", "--train": "data/fineweb10B/fineweb_train_*.bin", "--val": "data/fineweb10B/fineweb_val_*.bin", "--eval-batches": "160",
            "--save-every": "1000", "--out": "out/124M", "--keep": "3", "--seed": "7"})
        with open(os.path.join(ROOT, "llmc", "run", "FLAGS.md"), encoding="utf-8") as file:
            rows = re.findall(r"(?m)^\| `(--[a-z0-9-]+)` \|(.*)\|$", file.read().split("| Defaults by recipe ")[1])
        recipe = {name: values.split("|")[4].strip() for name, values in rows}
        changed = [f"{name} {flags[name]} for {value}" for name, value in recipe.items() if flags.get(name, value) != value]
        self.assertEqual([re.search("but (.*):", line)[1] for line in said], changed)


class UnicodeClasses(Parts):
    def test_the_table_is_what_the_script_makes(self):
        """But for code points that this Python's Unicode does not know, or has in another class than 16.0."""
        with open(os.path.join(ROOT, "llmc", "tokenizer", "unicode_classes.h"), encoding="utf-8") as file:
            text = file.read()
        of_table = {}
        for kind, name in make_unicode_classes.TABLES.items():
            ranges, last = re.search(name + r"\[\]\[2\] = \{(.*?)\};", text, re.S).group(1), -1
            for first, end in re.findall(r"\{0x([0-9A-F]+), 0x([0-9A-F]+)\}", ranges):
                first, end = int(first, 16), int(end, 16)
                self.assertTrue(last < first <= end, hex(first))
                self.assertFalse(of_table.keys() & range(first, end + 1), hex(first))
                of_table.update(dict.fromkeys(range(first, end + 1), kind))
                last = end
        self.assertGreater(len(of_table), 100000)
        made = {}
        last = -1
        for first, end, kind in make_unicode_classes.ranges():
            self.assertTrue(last < first <= end, hex(first))
            made.update(dict.fromkeys(range(first, end + 1), kind))
            last = end
        differ = [point for point in range(0x110000) if of_table.get(point) != made.get(point) and unicodedata.category(chr(point)) != "Cn"]
        self.assertLess(len(differ), 10, [hex(point) for point in differ[:20]])

    def test_white_space(self):
        """The property White_Space, of which Python has no table."""
        spaces = [*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
        found = [point for point in range(0x110000) if make_unicode_classes.class_of(point) == "SPACE"]
        self.assertEqual(found, spaces)
        for point, kind in ((0x41, "LETTER"), (0x39, "NUMBER"), (0xB2, "NUMBER"), (0x301, None), (0x200B, None), (0x2D, None)):
            self.assertEqual(make_unicode_classes.class_of(point), kind, hex(point))

    def test_what_it_prints(self):
        self.replace(make_unicode_classes, "ranges", lambda: [(0x41, 0x5A, "LETTER"), (0x30, 0x39, "NUMBER")] * 7)
        self.replace(make_unicode_classes.sys, "argv", ["make_unicode_classes.py"])
        out = io.StringIO()
        with redirect_stdout(out):
            make_unicode_classes.main()
        letters, numbers = ("{0x0041, 0x005A},", "{0x0030, 0x0039},")
        self.assertTrue(out.getvalue().endswith("".join(
            f"static const uint32_t {name}[][2] = {{\n    {' '.join([entry] * 6)}\n    {entry}\n}};\n"
            for name, entry in (("unicode_letters", letters), ("unicode_numbers", numbers))) +
            "static const uint32_t unicode_spaces[][2] = {\n   \n};\n/* clang-format on */\n"))
        self.assertIn(f"/* Unicode {make_unicode_classes.unicodedata.unidata_version}: ", out.getvalue())
