"""scripts/*.py as programs, on any machine: bad input is one line and exit code 2, and leaves nothing behind."""
import os
import signal
import subprocess
import sys

from parts import ROOT, Parts

PLOT, REPORT = "scripts/plot.py", "scripts/report.py"


class Runs(Parts):
    """Those that look at runs."""

    def test_files_that_are_no_runs(self):
        self.file("empty", "")
        for words, path in (("none: No such file", f"a={self.path('none')}"), ("log.jsonl: No such file", self.folder),
                            ("README.md:1: expected a line of a log.jsonl", "README.md"), ("/empty: no step in it", self.path("empty")),
                            (r"no\?\[31m\?\?\?: No such file", "a=" + self.path("no\033[31m\udc9b\u009b\u202e")),
                            ("default_run.png:1: expected a line of a log.jsonl", "dev/results/cpu/default_run.png")):
            self.script_refuses(words, PLOT, path)
        self.file("log.jsonl", '{"step": 1, "loss": 2.5}\n[1]\n')
        self.script_refuses(r"log.jsonl:2: expected a line of a log.jsonl, found '\[1\]'", PLOT, self.path("log.jsonl"))
        self.script_refuses("none: No such file", REPORT, self.path("none"))
        for words in (("",), ("a=",), ("a=", self.folder)):
            for script in (PLOT, REPORT)[:3 - len(words)]:
                self.script_refuses(f"'{words[0]}': expected \\[NAME=\\]RUN, a run's folder or a log.jsonl, found no path; hint: ", script, *words)

    def test_a_folder_of_runs(self):
        self.file("mine/log.jsonl", "")
        for script in (PLOT, REPORT):
            self.script_refuses(f"{self.folder}/log.jsonl: No such file or directory; hint: {self.folder}/mine is a run", script, self.folder)

    def test_ctrl_c_during_the_imports(self):
        self.file("csv.py", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")  # in the place of Python's own
        for script in (PLOT, REPORT, "scripts/to_tensorboard.py"):
            done = subprocess.run([sys.executable, "-B", os.path.join(ROOT, script), "--help"], text=True, capture_output=True, check=False,
                                  env={**os.environ, "PYTHONPATH": self.folder})
            self.assertEqual((done.returncode, done.stdout, done.stderr), (-signal.SIGINT, "", ""))

    def test_words(self):
        self.script_refuses(r"required: \[NAME=\]RUN", PLOT)
        self.script_refuses(r"required: \[NAME=\]RUN", "scripts/to_tensorboard.py", "--follow")
        for words, flag, value in (("--smooth: expected an integer from 1.*'0'", "--smooth", "0"),
                                   ("--panels: expected names of loss,.*found 'loss,loss'", "--panels", "loss,loss"),
                                   ("--out x.gif: expected a path that ends with one of .png, .svg, .pdf", "--out", "x.gif"),
                                   ("none/x.png: cannot be written: no such folder", "--out", self.path("none", "x.png"))):
            self.script_refuses(words, PLOT, flag, value, "README.md")
        self.script_refuses("none/x.html: cannot be written: no such folder", REPORT, "--out", self.path("none", "x.html"), "README.md")
        self.script_refuses("unrecognized arguments: more.*--help", REPORT, "README.md", "more")
        self.script_refuses("expected one FILE.bin", "scripts/random_shard.py")
        self.script_refuses("/none/x.bin: No such file", "scripts/random_shard.py", self.path("none", "x.bin"))

    def test_a_text_of_the_users_stays(self):
        mine = self.file("my.txt", "mine\n")
        self.script_refuses(f"--out {mine}: expected a path that ends with one of .html, .htm", REPORT, "--out", mine, self.file("empty", ""))
        self.assertEqual(self.text("my.txt"), "mine\n")


class Comparisons(Parts):
    """Those that measure: what they are asked for is looked at before the card."""

    def test_words(self):
        for script, words, *flags in (("compare_attention", "--seq.*'1024,0'", "--seq", "1024,0"),
                                      ("compare_attention", "--head-size.*multiple of 8", "--head-size", "60"),
                                      ("compare_attention", "multiple of the head size 128.*1600", "--channels", "1600"),
                                      ("compare_attention", "invalid choice: 'some'", "--mask", "some"),
                                      ("compare_attention", "unrecognized arguments: --bogus", "--bogus"),
                                      ("compare_attention", "--slice.*'0.001'", "--slice", "0.001"),
                                      ("compare_attention", "nothing is left to do", "--check", "--no-check"),
                                      ("compare_train", "MODEL:BxT.*'d12:64'", "--only", "d12:64"),
                                      ("compare_train", "--seconds.*'nan'", "--seconds", "nan"),
                                      ("compare_train", "--flags.*quotation", "--flags", "--graph 'off"),
                                      ("compare_train", "ATTENTION/MODE.*'flash3'", "--ways", "flash3"),
                                      ("compare_train", "ATTENTION/MODE.*'flash4/default'", "--ways", "flash4/default"),
                                      ("compare_scaling", "MODEL:BxT.*'d12:64'", "--cases", "d12:64"),
                                      ("compare_scaling", "--gpus.*'1'", "--gpus", "1"),
                                      ("compare_scaling", "--buckets.*'0'", "--buckets", "0"),
                                      ("scaling", "MODEL:BxT.*'d13:1x1'", "--cases", "d13:1x1"),
                                      ("context", "--seq.*'12,x'", "--seq", "12,x"),
                                      ("context", "'some' is not one of flash", "--modes", "flash,some"),
                                      ("context", "--limit.*'inf'", "--limit", "inf"),
                                      ("context", "pairs of name and value, found --overfit", "--", "--overfit")):
            self.script_refuses(words, f"scripts/{script}.py", *flags)

    def test_files(self):
        none = self.path("none")
        for script, words, *flags in (("compare_train", "README.md: expected a token shard", "--train", "README.md"),
                                      ("compare_train", "/none: cannot be read", "--train", none),
                                      ("compare_scaling", "README.md: expected a token shard", "--train", "README.md"),
                                      ("scaling", "/none.csv: cannot be read", "--check", f"{none}.csv"),
                                      ("combine", "/none.csv: cannot be read", "attention", f"{none}.csv"),
                                      ("combine", "README.md: expected rows with a column head_size", "attention", "README.md"),
                                      ("context", "README.md: expected the columns T,mode", "--plot-only", "--csv", "README.md"),
                                      ("context", "/none/x.png: cannot be written: no such folder", "--png", f"{none}/x.png"),
                                      ("sweep", "/none/x.png: cannot be written: no such folder", "--out", self.path("sweep"), "--grid", "--lr 1",
                                       "--program", "/bin/sh", "--plot", f"{none}/x.png"),
                                      ("context", f"{self.folder}: cannot be written: is a folder", "--csv", self.folder),
                                      ("compare_attention", "/none/x.csv: cannot be written: no such folder", "--csv", f"{none}/x.csv"),
                                      ("compare_attention", "/none/x.md: cannot be written: no such folder", "--markdown", f"{none}/x.md")):
            self.script_refuses(words, f"scripts/{script}.py", *flags)
