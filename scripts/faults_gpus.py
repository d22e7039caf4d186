#!/usr/bin/env python3
"""Faults of a run on many ranks, by hand: kills and stops each rank at random times, starts ranks with a wrong flag, with no one
to meet and at a port in use, fills the disk, and leaves a GPU no memory. After each it checks that all processes end in time with
one line that says what it should and the right exit code, that nothing is left, and that --resume goes on to the same weights.

    scripts/faults_gpus.py --count 3                           # two GPUs, each rank killed and stopped 3 times, about 8 minutes
    scripts/faults_gpus.py --count 50 --only kill,stop --jobs 10 -- --model d6 --layers 2 --batch 8 --seq 128 \
        --tokens-per-step 0 --steps 300 --save-every 30        # as many times as the aim says, ten small runs beside each other
    scripts/faults_gpus.py --program ./train_gpt2 --device cpu --gpus 4 --count 2

Ends with a table; exit 1 where a fault did not end as it should. Flags of the trainer behind --: they replace the run's own.
Needs a C compiler for the full disk.
"""
import argparse
import concurrent.futures
import glob
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid

from comparison import (EXIT_RUN, ROOT, Parser, Report, commit_of, duration, end_with, fail, free_port, integer, integers, listed, need_card,
                        need_program, one_of, provenance, torchrun_variables, visible_card)

END_S, START_S = 15.0, 30.0  # within which all must end: once all ranks train, and before
MORE_S = 5.0  # that a start may take beyond START_S, which is the ranks' patience, to be counted as in time
PATIENCE_S = 90.0  # after which this script ends a run itself
AT_RANDOM = ("kill", "stop", "signal")  # times; --count of each
KINDS = (*AT_RANDOM, "flag", "absent", "port", "disk", "memory")
MARK = "FAULTS_GPUS_RUN"
BEGAN = time.monotonic()
FLAGS = {"cpu": "--model nano --batch 4 --seq 64 --tokens-per-step 0 --steps 80 --save-every 8",
         "cuda": "--model d6 --batch 32 --seq 256 --tokens-per-step 0 --steps 2000 --save-every 100"}
MEMORY_FLAGS = "--model d12 --batch 640 --seq 512 --tokens-per-step 0"  # 90 GiB or so: two of them have no room on one card of 140


def processes(mark):
    """{pid: environment} of those that carry the mark; zombies have no environment any more."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        environment = dict(word.split("=", 1) for word in words if "=" in word)
        if environment.get(MARK) == mark:
            found[int(path.split("/")[2])] = environment
    return found


def kill(pid, number=signal.SIGKILL):
    """False where it has gone by itself."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class Run:
    """One start of a run: --gpus N, or ranks one by one. Its processes carry a mark in their environment."""

    lock, begun, is_over = threading.Lock(), set(), False  # of all runs; is_over: none begins any more

    def __init__(self, work):
        self.mark, self.started = uuid.uuid4().hex, []
        self.out, self.err = (open(os.path.join(work, f"{name}.{self.mark}"), "w+b") for name in ("out", "err"))

    def start(self, command, variables=None):
        environment = {**os.environ, **(variables or {}), MARK: self.mark}
        with Run.lock:
            if Run.is_over:
                sys.exit(EXIT_RUN)  # of this thread
            Run.begun.add(self)
            self.started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, env=environment,
                                                 cwd=ROOT, start_new_session=True))

    def rank(self, rank):
        """Its process, or None."""
        pids = [pid for pid, environment in processes(self.mark).items() if environment.get("RANK") == str(rank)]
        return pids[0] if pids else None

    def running(self):
        return any(process.poll() is None for process in self.started)

    def await_ranks(self, n):
        while self.running() and None in [self.rank(rank) for rank in range(n)]:
            time.sleep(0.02)

    def end(self, since):
        """Waits until all processes are gone; (seconds since then, exit codes). Those that outlive PATIENCE_S are killed."""
        while self.running() or processes(self.mark):
            if Run.is_over or time.monotonic() - since > PATIENCE_S:
                self.end_processes()
            time.sleep(0.02)
        if Run.is_over:
            sys.exit(EXIT_RUN)  # of this thread
        return time.monotonic() - since, [process.wait() for process in self.started]

    def text(self, file):
        file.seek(0)
        return file.read().decode(errors="replace")

    def errors(self):
        """Lines of stderr, but notes and warnings."""
        return [line for line in self.text(self.err).splitlines() if not line.startswith(("note: ", "warning: "))]

    def end_processes(self):
        for pid in processes(self.mark):
            kill(pid)

    @classmethod
    def end_all(cls):
        """Where this script is to end: the runs, and with them the threads that look after them."""
        with cls.lock:
            cls.is_over = True
            for run in list(cls.begun):
                run.end_processes()

    def close(self):
        self.end_processes()
        Run.begun.discard(self)
        for file in (self.out, self.err):
            file.close()


def steps_in(out):
    """Steps that the log of a run has lines of."""
    try:
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as file:
            return sum('"ms"' in line for line in file)
    except OSError:
        return 0


def log_of(out):
    """Tells whether a run has opened its log: it holds what the run before wrote until --resume cuts it back."""
    try:
        found = os.stat(os.path.join(out, "log.jsonl"))
        return found.st_ino, found.st_size, found.st_mtime_ns
    except OSError:
        return None


def saved_in(out):
    """The step of the newest checkpoint of a run, to which --resume cuts its log back; 0 where there is none."""
    return max((int(os.path.basename(path)[5:]) for path in glob.glob(os.path.join(glob.escape(out), "step_*"))), default=0)


def weights_of(out):
    """A hash of the newest checkpoint's weights, or its absence."""
    newest = sorted(glob.glob(os.path.join(glob.escape(out), "step_*", "model.safetensors")))
    if not newest:
        return "no checkpoint"
    with open(newest[-1], "rb") as file:
        return f"{newest[-1].split(os.sep)[-2]} {hashlib.sha256(file.read()).hexdigest()}"


class Faults:
    """The faults of one run after another, in a folder of their own, and the rows of the table, which those beside them share."""

    lock = threading.Lock()  # of the rows

    def __init__(self, arguments, count, rows, text, work):
        self.arguments, self.count, self.rows, self.text, self.work = arguments, count, rows, text, work
        self.out = os.path.join(work, "run")
        self.reference = self.reference_s = None

    def command(self, out, *more):
        arguments = self.arguments
        return [os.path.abspath(arguments.program), "--device", arguments.device, "--train", self.text, "--keep", "2",
                "--sample-tokens", "0", "--eval-every", "0", *arguments.flags, "--out", out, *more]

    def begin(self, out, *more, variables=None):
        """A run of all ranks."""
        run = Run(self.work)
        run.start(self.command(out, "--gpus", str(self.arguments.gpus), *more), variables)
        return run

    def begin_again(self):
        """(run, a function that tells whether all its ranks train by now) of the run that goes on, or begins."""
        before, log, run = saved_in(self.out), log_of(self.out), self.begin(self.out, "--resume")
        return run, lambda: log_of(self.out) != log and steps_in(self.out) > before

    def late(self):
        return bool(self.arguments.deadline) and time.monotonic() - BEGAN > self.arguments.deadline

    def note(self, fault, problems, seconds=None, line=""):
        """One trial of a fault: what was wrong with it, if anything."""
        with self.lock:
            row = self.rows.setdefault(fault, {"trials": 0, "good": 0, "slowest": 0.0, "line": "", "problems": []})
            row["trials"] += 1
            row["good"] += not problems
            row["slowest"] = max(row["slowest"], seconds or 0.0)
            row["line"] = row["line"] or line
            row["problems"] += problems
        print(f"{fault:20s} {'-' if seconds is None else f'{seconds:5.1f} s'}  {'; '.join(problems) or 'ok'}  {line[:150]}", flush=True)

    def judge(self, fault, run, since, limit, codes, words=(), lines=1):
        """Waits for the end of a run; notes time, exit code, lines on stderr (where lines is 0: any) and what they must say. A rank
        that is stopped when all work is done spoils nothing: exit code 0, no line, all weights. The next run begins anew."""
        seconds, found = run.end(since)
        seconds = max(0.0, seconds)
        said, problems = run.errors(), []
        if found == [0] and codes == [1] and weights_of(self.out) == self.reference:
            codes, words, lines = [0], [], 0
            shutil.rmtree(self.out)
        if seconds > limit:
            problems.append(f"took {seconds:.1f} s, expected {limit:g}")
        if any(code not in codes for code in found):
            problems.append(f"exit codes {found}, expected {' or '.join(map(str, codes))}: {' '.join(said)[:200]}")
        if lines and not 1 <= len(said) <= lines:
            problems.append(f"{len(said)} lines on stderr, expected {lines}: {' / '.join(said)[:300]}")
        problems += [f"no {word!r} in {' / '.join(said)[:200]!r}" for word in words if not any(word in line for line in said)]
        self.note(fault, problems, seconds, said[0] if said else "")
        run.close()

    # ---- the whole run, and going on ----

    def whole_run(self):
        """Nothing is done to it: its weights and its time."""
        out, began = os.path.join(self.work, "whole"), time.monotonic()
        run = self.begin(out)
        run.await_ranks(self.arguments.gpus)
        seen = time.monotonic()
        _, codes = run.end(began)
        if codes != [0]:
            fail(f"the run that nothing is done to ended with {codes[0]}: {' '.join(run.errors())[:300]}", EXIT_RUN)
        self.reference, self.reference_s = weights_of(out), time.monotonic() - seen
        print(f"undisturbed: {self.reference_s:.1f} s, {steps_in(out)} steps", flush=True)
        run.close()

    def check_end(self, run, fault):
        """The run came to its end by itself: its weights must be those of the whole run. The next one begins anew."""
        _, codes = run.end(time.monotonic())
        found = weights_of(self.out)
        problems = [] if codes == [0] and found == self.reference else [f"exit {codes[0]}, weights {found[:30]}, expected {self.reference[:30]}: "
                                                                        f"{' '.join(run.errors())[:200]}"]
        self.note(f"{fault}, resumed", problems)
        run.close()
        shutil.rmtree(self.out, ignore_errors=True)

    def go_on(self, fault):
        """To the end, from what the faults left."""
        self.check_end(self.begin(self.out, "--resume"), fault)

    # ---- faults at random times ----

    def strike(self, run, rank, number):
        """A signal to a rank of the run; False where it was over before."""
        pid = run.rank(rank) if run.running() else None
        return pid is not None and kill(pid, number)

    def at_random(self, fault, rank, number, words):
        """Starts or goes on; strikes at a random time, and all must end with 1 and the words. False: the run was over before."""
        run, all_train = self.begin_again()
        run.await_ranks(self.arguments.gpus)
        time.sleep(random.uniform(0, self.reference_s))
        trains = all_train()
        if not self.strike(run, rank, number):
            self.check_end(run, fault)
            return False
        self.judge(fault, run, time.monotonic(), END_S if trains else START_S + MORE_S, [1], words if trains else [])
        return True

    def repeat(self, what, number, *words):
        """The fault of each rank, so many times; a line must have the rank's number and the words."""
        for rank in self.arguments.ranks or range(self.arguments.gpus):
            done = tries = 0
            while done < self.count and tries < 20 * self.count and not self.late():
                done += self.at_random(f"{what} rank {rank}", rank, number, [f"rank {rank}", *words])
                tries += 1
            if done < self.count and not self.late():
                self.note(f"{what} rank {rank}", [f"struck {done} times of {self.count}: the run was over before"])
            self.go_on(f"{what} rank {rank}")

    def kill(self):
        self.repeat("kill", signal.SIGKILL)  # a rank that is gone at once is named by --gpus, which knows no host

    def stop(self):
        self.repeat("stop", signal.SIGSTOP, socket.gethostname()[:40])

    def signal(self):
        """SIGTERM to any rank saves and ends all with exit code 0; before the first step there is nothing to save."""
        for rank in range(self.arguments.gpus):
            done, fault = 0, f"SIGTERM to rank {rank}"
            while done < self.count and not self.late():
                run, all_train = self.begin_again()
                run.await_ranks(self.arguments.gpus)
                while run.running() and not all_train():
                    time.sleep(0.02)
                time.sleep(random.uniform(0, 0.5 * self.reference_s))
                if not self.strike(run, rank, signal.SIGTERM):
                    self.check_end(run, fault)
                    continue
                self.judge(fault, run, time.monotonic(), END_S, [0], lines=0)
                done += 1
            self.go_on(fault)

    # ---- faults at the start: torchrun's variables, a process at a time ----

    def begin_ranks(self, port, present=None, flags=None):
        """A run of ranks that are started one by one, the first ones where not all are present. flags: {rank: more flags}."""
        run, n_ranks = Run(self.work), self.arguments.gpus
        for rank in range(n_ranks if present is None else present):
            run.start(self.command(os.path.join(self.work, "start"), *(flags or {}).get(rank, [])), {
                **torchrun_variables(rank, n_ranks, port), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")})
        return run

    def flag(self):
        n = self.arguments.gpus
        for rank in range(n):
            for fault, more, words, lines in ((f"other --lr, rank {rank}", ["--lr", "1e-5"], ["lr"], 1),
                                              (f"no such flag, rank {rank}", ["--nosuch", "1"], ["--nosuch"], n)):
                began, run = time.monotonic(), self.begin_ranks(free_port(), flags={rank: more})
                # With a flag that none knows a rank never comes, and the others give up with a line of their own.
                self.judge(fault, run, began, START_S + MORE_S, [2] if lines == 1 else [1, 2], words, lines)

    def absent(self):
        last = self.arguments.gpus - 1
        began, run = time.monotonic(), self.begin_ranks(free_port(), present=last)
        self.judge("last rank absent", run, began, START_S + MORE_S, [1], [f"rank {last}"], last)

    def port(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen(64)
            number = taken.getsockname()[1]
            began, run = time.monotonic(), self.begin_ranks(number)
            self.judge("port in use", run, began, START_S + MORE_S, [1, 2], [str(number)], self.arguments.gpus)

    # ---- a full disk, no memory ----

    def disk(self):
        """A save that fails at the end: exit 1, the checkpoint before it stays, and the run goes on from it."""
        library = os.path.join(self.work, "disk_faults.so")
        if subprocess.run([os.environ.get("CC", "cc"), "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, os.path.join(ROOT, "dev", "test", "disk_faults.c")],
                          capture_output=True, check=False).returncode:
            self.note("full disk", ["not run: no C compiler"])
            return
        self.half_a_run()
        run = self.begin(self.out, "--resume", variables={"LD_PRELOAD": library, "FULL": "optimizer.safetensors:100000"})
        self.judge("full disk, rank 0", run, time.monotonic() + self.reference_s, END_S, [1], ["No space left"])
        self.go_on("full disk, rank 0")

    def half_a_run(self):
        """Saved, and ended by a signal; once more where it came to its end before."""
        tries = 0
        while not tries or (tries < 20 and weights_of(self.out) == self.reference):
            shutil.rmtree(self.out, ignore_errors=True)
            run, tries = self.begin(self.out), tries + 1
            while run.running() and not glob.glob(os.path.join(glob.escape(self.out), "step_*", "model.safetensors")):
                time.sleep(0.05)
            for process in run.started:
                process.terminate()
            run.end(time.monotonic())
            run.close()

    def memory(self):
        """Another program has most of the last card's memory."""
        last = self.arguments.gpus - 1
        if self.arguments.device == "cpu":
            return
        hog = Run(self.work)
        flags, self.arguments.flags = self.arguments.flags, MEMORY_FLAGS.split()
        hog.start(self.command(os.path.join(self.work, "hog"), "--steps", "1000000", "--model-only"), {"CUDA_VISIBLE_DEVICES": visible_card(last)})
        while hog.running() and steps_in(os.path.join(self.work, "hog")) < 2:
            time.sleep(0.1)
        began = time.monotonic()
        run = self.begin(os.path.join(self.work, "no_memory"), "--steps", "3", "--model-only")
        self.judge(f"no memory, rank {last}", run, began, START_S, [1, 2], [f"rank {last}"])
        self.arguments.flags = flags
        hog.close()


def at_once(pool, function, jobs):
    """function(job) of all. A signal that another thread was given is heard between two looks."""
    futures = [pool.submit(function, job) for job in jobs]
    while concurrent.futures.wait(futures, timeout=0.2).not_done:
        pass
    for future in futures:
        future.result()


def try_all(arguments, work):
    """Rows of all faults. Those at random times are shared out between --jobs runs beside each other."""
    rows, jobs = {}, []
    text = shutil.copy(os.path.join(ROOT, "README.md"), work)  # which may be edited meanwhile
    for i in range(min(arguments.jobs, arguments.count)):
        folder = os.path.join(work, str(i))
        os.mkdir(folder)
        jobs.append(Faults(arguments, len(range(i, arguments.count, arguments.jobs)), rows, text, folder))
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        try:
            at_once(pool, Faults.whole_run, jobs)
            for kind in arguments.only:
                if not jobs[0].late():
                    at_once(pool, getattr(Faults, kind), jobs if kind in AT_RANDOM else jobs[:1])
        except BaseException:
            Run.end_all()
            raise
    return rows


def table(rows, report):
    """Returns whether all ended as they should."""
    report.table("### Faults", [f"{'fault':24s}", "trials", "as it should", "slowest, s", "a line"])
    for fault, row in rows.items():
        report.record(fault=fault, trials=row["trials"], good=row["good"], slowest_s=f"{row['slowest']:.1f}", line=row["line"],
                      problems="; ".join(dict.fromkeys(row["problems"])))
        report.row([fault, str(row["trials"]), str(row["good"]), f"{row['slowest']:.1f}" if row["slowest"] else "-", row["line"] or "-"])
    bad = {fault: row["problems"] for fault, row in rows.items() if row["problems"]}
    for fault, problems in bad.items():
        report.note(f"{fault}: {'; '.join(dict.fromkeys(problems))}.")
    report.note(f"All processes must end within {END_S:g} s of the fault, {START_S:g} s at the start, and leave nothing running. "
                "resumed: --resume goes on to the weights of a run that nothing was done to, bit for bit.")
    return not bad


def parse_arguments(argv):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_gpt2cu", metavar="FILE", help="default ./train_gpt2cu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpus", type=integer(2, 64), default=2, metavar="N", help="ranks (default 2)")
    parser.add_argument("--ranks", type=integers(0, 63), metavar="LIST", help="that are killed and stopped (default all)")
    parser.add_argument("--count", type=integer(1, 10000), default=10, metavar="N", help="of each fault at random times (default 10)")
    parser.add_argument("--jobs", type=integer(1, 64), default=1, metavar="N", help="runs beside each other that share these out (default 1)")
    parser.add_argument("--only", type=listed(one_of(KINDS)), default=list(KINDS), metavar="LIST", help=f"of {','.join(KINDS)}")
    parser.add_argument("--deadline", type=duration(1, 1e6), metavar="S", help="no fault begins so long after the start; what was begun goes on to its end")
    parser.add_argument("--seed", type=integer(0, 1 << 30), default=1, metavar="N", help="of the random times (default 1)")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="of the trainer: model, batch, steps, how often it saves")
    arguments = parser.parse_args(argv)
    if max(arguments.ranks or [0]) >= arguments.gpus:
        parser.error(f"--ranks {max(arguments.ranks)}: expected ranks below --gpus {arguments.gpus}")
    return arguments


def main():
    arguments = parse_arguments(sys.argv[1:])
    arguments.flags = arguments.flags or FLAGS[arguments.device].split()
    need_program(arguments.program, os.path.basename(arguments.program))
    if arguments.device == "cuda":
        need_card("--device cpu --program ./train_gpt2")
    random.seed(arguments.seed)
    report = Report(arguments.csv, arguments.markdown)
    report.header(provenance(commit_of(os.path.abspath(arguments.program)), "CPU"))
    with tempfile.TemporaryDirectory() as work:
        good = table(try_all(arguments, work), report)
    report.close()
    return 0 if good else EXIT_RUN


if __name__ == "__main__":
    end_with(main)
