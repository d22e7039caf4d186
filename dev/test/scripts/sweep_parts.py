"""scripts/sweep.py, with a stand-in for the trainer: plans, what is run and kept, times, results."""
import json
import math
import os
import signal
import subprocess
import sys
import time
import types

from parts import SCRIPTS, Parts

import sweep

# A stand-in for the trainer: notes its words and surroundings, trains --steps steps of --lr ms, with a validation every tenth; the loss
# falls from 4 by lr/100 a step. --lr 0: stops at once; --lr 9: gives up at step 4; --lr 8: ends well without its last validation;
# --lr 7: takes a minute. The log's header has the fingerprints of a text (--train; by --val and --tokenizer, too) and of its last letter,
# which validates; OLD_LOG: none.
TRAINER = """#!/usr/bin/env python3
import json, os, sys, time, zlib
words = sys.argv[1:]
if words == ["--version"]:
    sys.exit(print("train_gpt2 0123abc"))
of = dict(zip(words, words[1:]))
lr, steps, out = float(of["--lr"]), int(of.get("--steps", 20)), of["--out"]
with open(os.path.dirname(out) + "/words", "a") as file:
    file.write(json.dumps([words, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("OMP_NUM_THREADS")]) + "\\n")
if lr == 0:
    sys.exit("error: no such thing")
os.mkdir(out + "/step_1")
with open(out + "/log.jsonl", "w") as log:
    header = {"flags": {"steps": steps, "train": of.get("--train"), "val": of.get("--val")}, "tokenizer": of.get("--tokenizer")}
    if "--train" in of and "OLD_LOG" not in os.environ:
        text = open(of["--train"], "rb").read()
        how = str((of.get("--val"), of.get("--tokenizer"))).encode()
        header.update(train_fingerprint=zlib.crc32(text[:-1] + how), val_fingerprint=zlib.crc32(text[-1:]))
    log.write(json.dumps({"run": header}) + "\\n")
    log.flush()
    if lr == 7:
        time.sleep(60)
    for step in range(1, steps + 1):
        loss = None if lr == 9 and step == 4 else 4 - lr * step / 100
        log.write(json.dumps({"step": step, "loss": loss, "norm": 1, "ms": 900 if step == 1 else lr}) + "\\n")
        if loss is None:
            sys.exit("error: gave up")
        if step % 10 == 0 and not (lr == 8 and step == steps):
            log.write(json.dumps({"step": step, "val_loss": 4 - lr * step / 100}) + "\\n")
"""


class Plans(Parts):
    def test_a_grid(self):
        runs = sweep.read_grid(["--optimizer adamw,muon", "--steps 20", "--lr 3e-4, 6e-4"])
        self.assertEqual([run.name for run in runs], ["optimizer-adamw_lr-3e-4", "optimizer-adamw_lr-6e-4", "optimizer-muon_lr-3e-4", "optimizer-muon_lr-6e-4"])
        self.assertEqual(runs[2].flags, ["--optimizer", "muon", "--steps", "20", "--lr", "3e-4"])
        self.assertEqual([run.name for run in sweep.read_grid(["--lr 1"])], ["run"])
        self.assertEqual([run.name for run in sweep.read_grid(["--train a/b.bin,c*"])], ["train-a-b.bin", "train-c-"])
        for axis in ("lr 1,2", "--lr", "--lr 1,,2"):
            self.refused("--grid: expected a flag and values.*found", 2, sweep.read_grid, [axis])

    def test_a_table(self):
        path = self.file("plan.tsv", "# first\na\t--lr 1 --prompt 'x y'\n\nb\t\n")
        self.assertEqual(sweep.read_plan(path), [("a", ["--lr", "1", "--prompt", "x y"]), ("b", [])])
        self.refused("plan.tsv:2: expected a name, a tab and flags, found 'b --lr 1'", 2, sweep.read_plan, self.file("plan.tsv", "a\t\nb --lr 1\n"))
        self.refused("plan.tsv:1: flags cannot be read", 2, sweep.read_plan, self.file("plan.tsv", "a\t'x\n"))
        self.refused("--plan .*none: No such file", 2, sweep.read_plan, self.path("none"))

    def test_json(self):
        path = self.file("plan.json", '[{"name": "a", "flags": "--lr 1"}]')
        self.assertEqual(sweep.read_plan(path), [("a", ["--lr", "1"])])
        for text in ("{}]", "[1]", '[{"name": "a"}]', '[{"name": "a", "flags": ["--lr"]}]'):
            self.refused("plan.json: .*expected", 2, sweep.read_plan, self.file("plan.json", text))

    def test_what_is_refused(self):
        good = sweep.Run("a", ["--lr", "1"])
        for runs, words in (([], "no run in the plan"), ([good, good], "run a: named twice"), ([sweep.Run("../a", [])], "expected a name of letters"),
                            ([sweep.Run("a", ["--out=x"])], "--out and --resume are"), ([sweep.Run("a", ["-y"])], "--out and --resume are"),
                            ([good, sweep.Run("b", ["--lr", "1", "--lr=2"])], "run b: --lr is given twice")):
            self.refused(words, 2, sweep.check_plan, runs)
        self.refused("run a: --lr is given twice", 2, sweep.check_plan, [good], ["--lr", "2"])
        sweep.check_plan([good, sweep.Run("b.1+2", ["--lr", "-1", "--seed", "-1"])], ["--steps", "1"])
        self.refused("expected one of --plan and --grid", 2, sweep.parse_arguments, ["--out", "x"])
        self.refused("expected one of --plan and --grid", 2, sweep.parse_arguments, ["--out", "x", "--plan", "y", "--grid", "--lr 1"])


class Sweeps(Parts):
    def setUp(self):
        super().setUp()
        self.trainer = self.program("trainer", TRAINER)

    def sweep(self, *arguments, plan="a\t--lr 2\nb\t--lr 4\n"):
        return self.said(sweep.main, ["--out", self.path("out"), "--program", self.trainer, "--plan", self.file("plan.tsv", plan), *arguments])

    def words(self):
        return [json.loads(line) for line in self.text("out", "words").splitlines()]

    def table(self):
        lines = [line.split("\t") for line in self.text("out", "results.tsv").splitlines() if not line.startswith("#")]
        return [dict(zip(lines[0], line)) for line in lines[1:]]

    def test_runs_and_their_results(self):
        status, out, err, _ = self.sweep("--flags", "--steps 30 --x", "--to", "3.15", "--threads", "3")
        self.assertEqual((status, err), (0, ""), out)
        self.assertEqual(self.words(), [[["--steps", "30", "--x", "--lr", lr, "--out", self.path("out", name), "--model-only"], None, "3"]
                                        for name, lr in (("a", "2"), ("b", "4"))])
        a, b = self.table()
        self.assertEqual((a["name"], a["state"], a["steps"], a["val_loss"], a["steps_to"], a["seconds_to"], a["ms"], a["flags"]),
                         ("a", "done", "30", "3.400000", "", "", "2.000", "--lr 2"))
        # 3.2 at step 20, 2.8 at step 30: 3.15 between them, an eighth of the way
        self.assertEqual((b["val_loss"], b["steps_to"], b["seconds_to"], b["ms"]), ("2.800000", "21", "0.09", "4.000"))
        self.assertFalse(os.path.exists(self.path("out", "a", "step_1")), "the checkpoint goes")
        self.assertIn("a: done  val loss 3.4000  2.0 ms a step", out)
        rows = [line for line in self.text("out", "summary.md").splitlines() if line.startswith("| `")]
        self.assertEqual(rows, ["| `--lr 4` | 1 | 2.8000 |  | 21 | 0.1 | 4.00 |", "| `--lr 2` | 1 | 3.4000 |  |  |  | 2.00 |"])
        self.assertIn("- commit: 0123abc", self.text("out", "summary.md"))

    def test_bad_input_makes_nothing(self):
        for words, said in ((["--flags", "--steps '3"], "--flags: flags cannot be read"), (["--to", "c*"], "--to c[*]: no run has such a name; the first is a"),
                            (["--flags", "--lr 1"], "run a: --lr is given twice"), (["--plot-runs", "a,c"], "--plot-runs c: no run has such a name")):
            _, _, err, code = self.sweep(*words)
            self.assertEqual((code, os.path.exists(self.path("out"))), (2, False), words)
            self.assertRegex(err, "^error: " + said)

    def test_what_has_finished_stays(self):
        self.sweep()
        os.remove(self.path("out", "b", "run.json"))  # as a kill leaves it
        self.file("out/b/torn", "")
        _, out, _, _ = self.sweep(plan="a\t--lr 2\nb\t--lr 4\nc\t--lr 1\n")
        self.assertEqual([words[0][1] for words in self.words()], ["2", "4", "4", "1"])
        self.assertIn("3 runs, 1 finished before", out)
        self.assertFalse(os.path.exists(self.path("out", "b", "torn")), "begun anew in an empty folder")
        self.assertEqual([row["name"] for row in self.table()], ["a", "b", "c"])
        before = self.text("out", "results.tsv"), len(self.words())
        _, _, err, code = self.sweep(plan="d\t--lr 1\na\t--lr 3\n")
        self.assertEqual((code, (self.text("out", "results.tsv"), len(self.words()))), (2, before), "results stay, and nothing is begun")
        self.assertRegex(err, "^error: .*out/a: holds the result of other flags: .*--lr 2; hint: another --out")
        _, _, err, code = self.sweep(plan="a\t--lr 2\nc\t--lr 1\n")
        self.assertEqual((code, (self.text("out", "results.tsv"), len(self.words()))), (2, before), "no line goes for want of a run in the plan")
        self.assertRegex(err, "^error: .*out/results.tsv: has results of runs that are not in this plan, such as b; hint: another --out, or a plan of all")
        os.remove(self.path("out", "a", "run.json"))
        self.sweep(plan="a\t--lr 3\nb\t--lr 4\nc\t--lr 1\n")
        self.assertEqual(self.words()[-1][0][1], "3", "what has no result is begun again, whatever its flags were")

    def again_with_text(self, text, *names, plan, begun=1):
        """Without these runs, with another text in the file: (what is refused, what is in the table)."""
        for name in names:
            os.remove(self.path("out", name, "run.json"))
        self.file("text", text)
        before = len(self.words())
        _, _, err, code = self.sweep(plan=plan)
        self.assertEqual((code, len(self.words()) - before), (2, begun), err)
        return err, [row["name"] for row in self.table()]

    def test_other_text_of_the_same_name(self):
        plan = "".join(f"{name}\t--lr {lr} --train {self.path('text')}\n" for name, lr in (("a", 2), ("b", 4), ("c", 3)))
        self.file("text", "once")
        self.sweep(plan=plan)
        self.assertEqual(self.sweep(plan=plan)[0], 0, "the same text goes on")
        for text, part in (("ONCe", "training"), ("oncE", "validation")):
            err, names = self.again_with_text(text, *(["b"] if part == "training" else []), plan=plan)
            self.assertRegex(err, rf"^error: \S*out/b: --train \S*text has other {part} data than it had in \S*out/a: expected fingerprint \d+, found \d+; "
                             r"hint: another --out, or the data as they were\n$")
            self.assertEqual(names, ["a", "c"], "no row of the other text, and no run behind it")
        self.file("text", "once")
        self.assertEqual((self.sweep(plan=plan)[0], [row["name"] for row in self.table()]), (0, ["a", "b", "c"]), "with the text as it was it goes on")

    def test_a_run_of_other_text_is_ended_as_it_begins(self):
        plan = f"a\t--lr 2 --train {self.path('text')}\n"
        self.file("text", "once")
        self.sweep(plan=plan)
        begun = time.monotonic()
        self.assertEqual(self.again_with_text("ONCE", plan=plan + plan.replace("a\t--lr 2", "b\t--lr 7"))[1], ["a"])
        self.assertLess(time.monotonic() - begun, 50)

    def test_results_of_two_texts(self):
        plan = "".join(f"{name}\t--lr 2 --train {self.path(text)}\n" for name, text in
                       (("a", "text"), ("b", "other"), ("c", "text"), ("d", "text --val x"), ("e", "text --tokenizer x")))
        self.file("text", "once")
        self.file("other", "ONCE")
        self.assertEqual(self.sweep(plan=plan)[0], 0, "names of their own are flags")
        log = self.text("out", "c", "log.jsonl")
        self.file("out/c/log.jsonl", log.replace('"train_fingerprint": ', '"train_fingerprint": 1'))
        self.assertIn("out/c: --train", self.again_with_text("once", plan=plan, begun=0)[0])
        self.file("out/c/log.jsonl", log)
        os.environ["OLD_LOG"] = "1"
        self.addCleanup(os.environ.pop, "OLD_LOG")
        os.remove(self.path("out", "c", "run.json"))
        self.file("text", "ONCE")
        self.assertEqual(self.sweep(plan=plan)[0], 0, "a log without fingerprints is taken as it is")

    def test_a_folder_of_others_is_left_alone(self):
        self.file("out/a/mine", "")
        self.file("out/a/output.txt", "a name that anybody may have\n")
        self.refused("out/a: is there, and not of a sweep", 2, sweep.main,
                     ["--out", self.path("out"), "--program", self.trainer, "--plan", self.file("plan.tsv", "a\t--lr 2\n")])
        self.assertTrue(os.path.exists(self.path("out", "a", "mine")))

    def test_files_of_others_are_left_alone(self):
        for name in ("results.tsv", "summary.md"):
            self.file(f"out/{name}", "my own\n")
            self.refused(f"out/{name}: is there, and not of a sweep", 2, sweep.main,
                         ["--out", self.path("out"), "--program", self.trainer, "--plan", self.file("plan.tsv", "a\t--lr 2\n")])
            self.assertEqual(self.text("out", name), "my own\n")
            os.remove(self.path("out", name))

    def test_a_run_of_the_trainer_is_left_alone(self):
        self.file("one/log.jsonl", "{}\n")
        self.refused("--out .*one: holds a run of the trainer", 2, sweep.main,
                     ["--out", self.path("one"), "--program", self.trainer, "--grid", "--lr 1"])
        self.assertEqual(os.listdir(self.path("one")), ["log.jsonl"])

    def test_failures(self):
        status, out, err, _ = self.sweep(plan="a\t--lr 0\nb\t--lr 9\nc\t--lr 8\nd\t--lr 1\n")
        self.assertEqual(status, 1)
        self.assertIn("a: failed  exit 1: error: no such thing", out)
        self.assertEqual([(row["name"], row["state"], row["val_loss"]) for row in self.table()],
                         [("b", "diverged", "nan"), ("d", "done", "3.800000"), ("a", "failed", "nan"), ("c", "failed", "nan")])
        self.assertNotIn("--lr 0", self.text("out", "summary.md"))
        self.assertEqual(err, "2 failed, 0 not started for want of time\n")
        before = len(self.words())
        self.sweep(plan="a\t--lr 0\nb\t--lr 9\nd\t--lr 1\n")
        self.assertEqual([words[0][1] for words in self.words()[before:]], ["0"], "a failure is tried again; weights that diverged are a result")

    def test_time(self):
        self.sweep(plan="a\t--lr 1\n")
        record = json.loads(self.text("out", "a", "run.json"))
        self.file("out/a/run.json", json.dumps({**record, "seconds": 5000.0}))
        plan = "a\t--lr 1\nb\t--lr 2\nc\t--lr 3\n"
        status, _, err, _ = self.sweep("--seconds", "4000", plan=plan)
        self.assertEqual((status, err), (0, "0 failed, 2 not started for want of time\n"))
        status, _, err, _ = self.sweep("--seconds", "6000", plan=plan)
        self.assertEqual((status, err, len(self.table())), (0, "", 3))

    def test_the_longest_of_the_last_three(self):
        made = sweep.Sweep([], sweep.parse_arguments(["--out", "x", "--plan", "y", "--seconds", "5"]))
        for walls, fits in (([], True), ([9.0], False), ([9.0, 1.0, 1.0], False), ([9.0, 1.0, 1.0, 4.0], True)):
            made.walls = walls
            self.assertEqual(made.fits(), fits, walls)

    def test_cards_and_workers(self):
        self.sweep("--cards", "0,2")
        self.assertEqual(sorted(words[1] for words in self.words()), ["0", "2"])
        meet = self.program("meet", """#!/bin/sh
[ "$1" != --version ] || exit 0
: >"$0.$$" n=0
while [ "$(ls "$0".* | wc -l)" -lt 3 ]; do n=$((n + 1)) && [ $n -lt 1200 ] || exit 1; sleep 0.05; done
""")
        plan = self.file("plan.tsv", "e\t\nf\t\ng\t\n")
        self.said(sweep.main, ["--out", self.path("out2"), "--program", meet, "--plan", plan, "--workers", "3"])
        self.assertEqual([json.loads(self.text("out2", name, "run.json"))["exit"] for name in "efg"], [0, 0, 0], "each waits for the others")

    def test_a_signal(self):
        hang = self.program("hang", '#!/bin/sh\n[ "$1" != --version ] || exit 0\necho $$ >"${0%/*}/pid"\nexec sleep 600\n')
        self.sweep(plan="a\t--lr 2\n")
        process = subprocess.Popen([sys.executable, "-B", os.path.join(SCRIPTS, "sweep.py"), "--out", self.path("out"), "--program", hang, "--plan",
                                    self.file("plan.tsv", "a\t--lr 2\nb\t\n")], stdout=subprocess.PIPE, text=True)
        while not os.path.exists(self.path("pid")) or not self.text("pid"):
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        self.refused("another sweep is at work there", 1, sweep.main, ["--out", self.path("out"), "--program", hang, "--grid", "--lr 1"])
        process.send_signal(signal.SIGTERM)
        out = process.communicate()[0]
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertIn("| `--lr 2` | 1 |", out, "what it has is said")
        self.assertRaises(ProcessLookupError, os.kill, int(self.text("pid")), 0)

    def test_a_signal_as_a_run_begins_ends_it(self):
        began = self.signal_as_a_process_begins()
        made = sweep.Sweep([sweep.Run("a", [])], sweep.parse_arguments(["--out", self.path("out"), "--plan", "y", "--program", self.program("hang", "#!/bin/sh\nexec sleep 600\n")]))
        self.assertEqual(self.said(made.run_all)[3], 143)
        self.assertEqual([process.poll() for process in began], [-signal.SIGKILL])


class Results(Parts):
    def curve(self, *rows):
        self.file("log.jsonl", "".join(json.dumps(row) + "\n" for row in ({"run": {"flags": {"steps": 9}}}, *rows)) + '{"step": 3, "lo')
        return sweep.read_curve(self.folder)

    def test_a_log(self):
        first, second = {"step": 1, "loss": 4.0, "norm": 1.0, "ms": 900}, {"step": 2, "loss": 3.5, "norm": 1.0, "ms": 4}
        val = {"step": 2, "val_loss": 3.25}
        self.assertEqual(self.curve(first, second, {**second, "ms": 5}, val), ([(2, 3.25)], 5, 9, True), "up to the line that a kill tore")
        self.assertEqual(self.curve(first, second, val).final, 3.25)
        for name in ("loss", "norm"):
            self.assertTrue(math.isnan(self.curve(first, {**second, name: None}, val).final), name)
        self.assertEqual(sweep.read_curve(self.path("none")).val, [])

    def test_steps_to_a_loss(self):
        curve = sweep.Curve([(10, 4.0), (20, 3.0), (30, 3.5), (40, 2.0)], 1.0, 40, True)
        for loss, steps in ((5, 10), (4, 10), (3.5, 15), (3, 20), (2, 40), (1.9, None)):
            self.assertEqual(sweep.steps_to(curve, loss), steps)
        self.assertEqual(sweep.steps_to(sweep.Curve([(10, math.nan), (20, 3.0)], 1.0, 20, True), 3.5), 20)

    def test_the_loss_to_reach(self):
        curves = [(sweep.Run(name, []), sweep.Curve([(1, loss)], 1.0, 1, True)) for name, loss in (("adamw1", 3.5), ("adamw2", 3.25), ("muon", 3.0), ("adamw3", math.nan))]
        self.assertEqual([sweep.target_loss(text, curves) for text in (None, "2.5", "adamw*", "none")], [None, 2.5, 3.25, None])

    def test_curves(self):
        lines, saved = [], []

        class Anything:
            def __getattr__(self, name):
                draws = {"plot": lambda x, y, *_, **__: lines.append((tuple(x), tuple(y))), "savefig": lambda file, format, **_: saved.append(format)}
                return draws.get(name, Anything())

            def __call__(self, *_, **__):
                return Anything()

        library, plots = types.ModuleType("matplotlib"), types.ModuleType("matplotlib.pyplot")
        library.use, library.pyplot = lambda name: None, plots
        plots.subplots = lambda *_, **__: (Anything(), [Anything(), Anything()])
        for module in (library, plots):
            self.addCleanup(sys.modules.pop, module.__name__, None)
            sys.modules[module.__name__] = module
        curves = [(sweep.Run("a", []), sweep.Curve([(10, 4.0), (20, math.nan), (30, 3.0)], 500.0, 30, True)),
                  (sweep.Run("b", []), sweep.Curve([], 1.0, 30, True))]
        path = self.path("x.svg")
        self.assertEqual(self.said(sweep.plot, path, curves, 3.5)[1], f"{path}\n")
        self.assertEqual((lines, saved), ([((10, 30), (4.0, 3.0)), ((5.0, 15.0), (4.0, 3.0))], ["svg"]))

    def test_seeds_are_one_setting(self):
        def row(flags, loss, to):
            return {"flags": flags, "val_loss": loss, "steps_to": to, "seconds_to": to, "ms": "2"}

        rows = [row("--lr 1 --seed 1", "3.5", "100"), row("--lr 9", "nan", ""), row("--lr 1 --seed=2", "3.0", "50"), row("--lr 2 --seed 1", "3.1", "80"),
                row("--lr 2", "3.0", "")]
        self.assertEqual(sweep.summarise(rows), [["`--lr 2`", "2", "3.0500", "0.1000", "", "", "2.00"],
                                                 ["`--lr 1`", "2", "3.2500", "0.5000", "75", "75.0", "2.00"], ["`--lr 9`", "1", "nan", "", "", "", "2.00"]])
