"""scripts/faults_gpus.py, with a stand-in for the trainer: one that ends as it should, and ones that do not."""
import contextlib
import csv
import glob
import os
import random
import re
import signal
import subprocess
import sys
import time

from parts import Parts

import faults_gpus

# A stand-in for ./train_gpt2cu: a parent starts ranks and prints a line when one is gone or stopped. Rank 0 trains STEPS steps of
# 10 ms and saves every 5; the weights are the number of steps. FAULT: how it is not as it should be.
TRAINER = """#!{python}
import os, signal, subprocess, sys, time
FAULT, STEPS = {fault!r}, 60
words = sys.argv[1:]
def of(name, default=None):
    return words[words.index(name) + 1] if name in words else default
if "--version" in words:
    sys.exit(print("train_gpt2 0123abc"))
out, host = of("--out"), os.uname().nodename
def end(code, *lines):
    print(*lines, sep="\\n", end="\\n" if lines else "", file=sys.stderr, flush=True)
    sys.exit(code)
def pulse_of(rank):
    try:
        return os.stat(f"{folder}/pulse{{rank}}").st_mtime_ns
    except OSError:
        return 0
def meet_others(stop):
    before = pulse_of(1)
    while not stop and pulse_of(1) == before:
        time.sleep(0.01)
def train():
    os.makedirs(out, exist_ok=True)
    saved = sorted(name for name in os.listdir(out) if name.startswith("step_"))
    done = int(saved[-1][5:]) if saved and "--resume" in words else 0
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    for step in range(done + 1, STEPS + 1):
        meet_others(stop)
        with open(out + "/log.jsonl", "a") as log:
            log.write('{{"step": 1, "ms": 10}}\\n')
        if step % 5 == 0 or stop:
            if os.environ.get("FULL"):
                end(1, "warning: not saved", "error: checkpoint not saved: No space left on device")
            os.makedirs(f"{{out}}/step_{{step:08d}}", exist_ok=True)
            with open(f"{{out}}/step_{{step:08d}}/model.safetensors", "w") as file:
                file.write(str(step) + ("resumed" if FAULT == "weights" and "--resume" in words else ""))
        if stop:
            return
def rank_of_gpus(rank):
    if rank:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(int(os.environ["RANK_0"]), signal.SIGTERM))
    if rank == 0:
        train()
    else:
        while True:
            open("{folder}/pulse1", "w").close()
            time.sleep(0.01)
def is_stopped(pid):
    with open(f"/proc/{{pid}}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
def parent(n):
    ranks = []
    for rank in range(n):
        environment = {{**os.environ, "RANK": str(rank), "OURS": "1", "RANK_0": str(ranks[0].pid) if ranks else ""}}
        ranks.append(subprocess.Popen([sys.executable, __file__, *words], env=environment))
    signal.signal(signal.SIGTERM, lambda *_: ranks[0].terminate())
    while True:
        time.sleep(0.01)
        for rank, process in enumerate(ranks):
            code = process.poll()
            if FAULT == "late" and code is None and is_stopped(process.pid):
                process.send_signal(signal.SIGCONT)
            elif code is not None or is_stopped(process.pid):
                for other in ranks:
                    other.kill()
                if code == 0 or code == 1 or FAULT == "ends":
                    sys.exit(code)
                lines = [f"error: rank {{rank}} ({{host}}) is gone"]
                end(1 if FAULT != "code" else 2, *lines * (2 if FAULT == "lines" else 1))
if "OURS" in os.environ:
    rank_of_gpus(int(os.environ["RANK"]))
elif of("--gpus"):
    parent(int(of("--gpus")))
else:
    rank, n, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    def say(name, text):
        with open(f"{folder}/{{name}}.part", "w") as file:
            file.write(text)
        os.replace(f"{folder}/{{name}}.part", f"{folder}/{{name}}")
    if "--nosuch" in words:
        say(f"{{port}}.gone", "")
        end(2, "error: unknown flag --nosuch")
    say(f"{{port}}.{{rank}}", of("--lr", "none"))
    while not all(os.path.exists(f"{folder}/{{port}}.{{r}}") for r in range(n)):
        if os.path.exists(f"{folder}/{{port}}.gone") or os.path.exists("{folder}/absent"):
            end(1, f"error: rank {{n - 1}} did not come")
        time.sleep(0.01)
    rates = [open(f"{folder}/{{port}}.{{r}}").read() for r in range(n)]
    end(2, *["error: --lr differs"] if rank == 0 and len(set(rates)) > 1 else [f"error: port {{port}} is in use"] if len(set(rates)) == 1 else [])
"""


class Trials(Parts):
    def run_main(self, fault, *words):
        self.program("train_gpt2", TRAINER.format(python=sys.executable, fault=fault, folder=self.folder))
        uniform, absent = random.uniform, faults_gpus.Faults.absent

        def alone(faults):
            self.file("absent", "")  # nobody need wait for the rank that is not started
            absent(faults)
            os.remove(self.path("absent"))

        self.replace(faults_gpus.Faults, "absent", alone)
        self.replace(faults_gpus.random, "uniform", lambda least, most: uniform(least, min(most, 0.3)))  # the run takes 0.6 s at least
        for name, value in (("END_S", 60.0), ("PATIENCE_S", 120.0)):  # for a busy machine
            self.replace(faults_gpus, name, value)
        self.replace(sys, "argv", ["faults_gpus.py", "--program", self.path("train_gpt2"), "--device", "cpu", "--count", "1", *words])
        status, out, err, code = self.said(faults_gpus.main)
        self.assertEqual((err, code), ("", None), out)
        return status, out

    def test_all_as_it_should_be(self):
        status, out = self.run_main("", "--csv", self.path("x.csv"))
        self.assertEqual(status, 0, out)
        rows = [row for row in csv.DictReader(line for line in self.text("x.csv").splitlines() if not line.startswith("#"))]
        random_times = [f"{what} rank {rank}" for what in ("kill", "stop", "SIGTERM to") for rank in (0, 1)]
        self.assertEqual([row["fault"] for row in rows if not row["fault"].endswith("resumed")], random_times + [
            f"{what}, rank {rank}" for rank in (0, 1) for what in ("other --lr", "no such flag")] + ["last rank absent", "port in use", "full disk, rank 0"])
        self.assertEqual([row["fault"] for row in rows if row["fault"].endswith("resumed")], [f"{name}, resumed" for name in random_times + ["full disk, rank 0"]])

    def test_beside_each_other(self):
        status, out = self.run_main("", "--csv", self.path("x.csv"), "--only", "kill,flag", "--count", "3", "--jobs", "2")
        self.assertEqual((status, out.count("undisturbed: ")), (0, 2), out)
        rows = [row for row in csv.DictReader(line for line in self.text("x.csv").splitlines() if not line.startswith("#"))]
        trials = {row["fault"]: (row["trials"], row["good"]) for row in rows if not row["fault"].endswith("resumed")}
        self.assertEqual(trials, {**{f"kill rank {rank}": ("3", "3") for rank in (0, 1)}, **{
            f"{what}, rank {rank}": ("1", "1") for rank in (0, 1) for what in ("other --lr", "no such flag")}}, "the flags once")

    def test_a_signal_ends_it_and_its_runs(self):
        self.program("train_gpt2", TRAINER.format(python=sys.executable, fault="", folder=self.folder))
        words = ["--program", self.path("train_gpt2"), "--device", "cpu", "--only", "kill", "--count", "9", "--jobs", "3"]
        script = subprocess.Popen([sys.executable, "-u", faults_gpus.__file__, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in script.stdout:
            if line.startswith("kill rank"):
                break
        script.send_signal(signal.SIGTERM)
        rest = script.stdout.read()
        self.assertEqual(script.wait(), 128 + signal.SIGTERM, rest)
        self.assertLess(rest.count("kill rank"), 9, "of 18 kills")
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                self.assertNotIn(self.folder.encode(), file.read())

    def test_what_is_not_as_it_should_be(self):
        for fault, only, words in (("lines", "kill", "2 lines on stderr, expected 1"), ("code", "kill", r"exit codes \[2\], expected 1"), ("weights", "kill", "weights step_00000060")):
            status, out = self.run_main(fault, "--only", only)
            self.assertEqual(status, 1, fault)
            self.assertRegex(out, words)

    def test_stopped_when_all_is_done(self):
        status, out = self.run_main("late", "--only", "stop", "--count", "2")
        self.assertEqual(status, 0, out)
        self.assertEqual(len(re.findall(r"(?m)^stop rank [01] .* s  ok  $", out)), 4, out)
        status, out = self.run_main("ends", "--only", "stop")
        self.assertEqual(status, 1)
        self.assertRegex(out, r"exit codes \[0\], expected 1")

    def test_nothing_is_left(self):
        began = time.monotonic()
        run = faults_gpus.Run(self.folder)
        run.start(["sh", "-c", "sleep 600 & echo 'error: one' >&2; echo 'note: two' >&2; exit 3"])
        while len(faults_gpus.processes(run.mark)) != 1 or run.running():
            time.sleep(0.01)
        self.replace(faults_gpus, "PATIENCE_S", 0.5)
        seconds, codes = run.end(began)
        self.assertEqual((codes, run.errors(), faults_gpus.processes(run.mark)), ([3], ["error: one"], {}))
        self.assertGreater(seconds, 0.5)
        run.close()

    def test_words(self):
        self.assertEqual(faults_gpus.parse_arguments(["--only", "kill,disk"]).only, ["kill", "disk"])
        self.refused("'other' is not one of kill, stop", 2, faults_gpus.parse_arguments, ["--only", "kill,other"])
        self.refused("--ranks 2: expected ranks below --gpus 2", 2, faults_gpus.parse_arguments, ["--ranks", "0,2"])
        for step in (3, 20):
            os.makedirs(self.path(f"run/step_{step:08d}"))
        self.assertEqual((faults_gpus.saved_in(self.path("run")), faults_gpus.saved_in(self.path("none"))), (20, 0))
        self.assertIsNone(faults_gpus.log_of(self.path("run")))
        self.file(os.path.join("run", "log.jsonl"), '{"step": 1, "ms": 10}\n' * 30)
        before = faults_gpus.log_of(self.path("run"))
        self.assertEqual((faults_gpus.log_of(self.path("run")), faults_gpus.steps_in(self.path("run"))), (before, 30), "of the run before")
        with open(self.path("run", "log.jsonl"), "a", encoding="utf-8") as log:
            log.write('{"step": 1, "ms": 10}\n')
        self.assertNotEqual(faults_gpus.log_of(self.path("run")), before)
        parsed = faults_gpus.parse_arguments(["--gpus", "3", "--", "--model", "d6"])
        self.assertEqual((parsed.gpus, parsed.flags, parsed.count, parsed.only), (3, ["--model", "d6"], 10, list(faults_gpus.KINDS)))
        self.assertEqual((faults_gpus.END_S, faults_gpus.START_S), (15.0, 30.0))
