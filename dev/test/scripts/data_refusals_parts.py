"""data/*.py as programs, without network and packages: --help, and that bad input is one line and exit code 2 and leaves nothing
behind."""
import os
import sys
from unittest import mock

from parts import ROOT, Parts

PREPARING = ("text", "tinyshakespeare", "tinystories", "fineweb")


class Refusals(Parts):
    @classmethod
    def setUpClass(cls):
        modules = mock.patch.dict(sys.modules)  # those of data/ go when the last of these tests has ended
        modules.start()
        cls.addClassCleanup(modules.stop)

    def setUp(self):
        super().setUp()
        self.out = self.path("data")
        self.replace(os, "environ", {name: value for name, value in os.environ.items() if name != "TEXT"})

    def refuses(self, pattern, name, *words):
        self.script_refuses(pattern, f"data/{name}.py", *words)
        self.assertFalse(os.path.exists(self.out), "bad input makes no folder")

    def test_every_script(self):
        for name in PREPARING:
            _, out, _, code = self.said(self.run_script, f"data/{name}.py", "--help")
            self.assertEqual(code, 0)
            self.assertRegex(out, r"\.bin|_NNNNNN", "says what it writes")
            self.refuses("unrecognized arguments: --nosuch.*--help", name, "--nosuch", "x", "--out", self.out)
            self.refuses("--out: expected a value, found ''", name, "--out=", *["README.md"] * (name == "text"))

    def test_text(self):
        self.refuses("required: FILE, --out", "text")
        evil = self.path("no\033[31m\udc9b\u009b\u202e")  # of which nothing may reach the terminal
        for file, words in (("none", "none: No such file"), (evil, r"no\?\[31m\?\?\?: no such file"), (self.folder, f"{self.folder}: Is a directory")):
            self.refuses(words, "text", "README.md", self.path(file), "--out", self.out)
        for words, (flag, value) in ((r"--val-fraction nan: expected 0 to below 1", ("--val-fraction", "nan")),
                                     (r"--shard-tokens 0: expected 1 to", ("--shard-tokens", "0")),
                                     (r"--workers: invalid int value: '2x'", ("--workers", "2x")),
                                     (r"--name a/b: expected a name", ("--name", "a/b"))):
            self.refuses(words, "text", "README.md", "--out", self.out, flag, value)

    def test_data_sets(self):
        for words, name, *flags in ((r"invalid choice: '3B'", "fineweb", "--version", "3B"),
                                    (r"--max-shards 0: expected 1 to", "fineweb", "--max-shards", "0"),
                                    (rf"{self.folder}: no \*.parquet files", "fineweb", "--source", self.folder),
                                    (r"only --version 10B", "fineweb", "--pretokenized", "--version", "edu10B"),
                                    (r"README.md: size: expected 1115394 bytes", "tinyshakespeare", "--source", "README.md"),
                                    (r"README.md: not an archive of stories", "tinystories", "--source", "README.md")):
            self.refuses(words, name, *flags, "--out", self.out)

    def test_a_full_disk_is_a_failure_at_run_time_and_leaves_nothing(self):
        program = "import common, sys; common.run(lambda: common.write_file(sys.argv[1], bytes(100000)))"
        done = self.on_full_disk(sys.executable, "-B", "-c", program, self.path("big.bin"), cwd=os.path.join(ROOT, "data"))
        self.assertEqual((done.returncode, done.stderr), (1, f"error: {self.path('big.bin')}: File too large\n"))
        self.assertEqual(os.listdir(self.folder), [])
