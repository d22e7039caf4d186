#!/usr/bin/env python3
"""Trains once for every row of a plan and compares what came of it: loss, steps and seconds to a loss, ms a step.

usage: sweep.py --out DIR --plan FILE | --grid "--lr 3e-4,6e-4" "--optimizer adamw,muon" ... [--flags "FLAGS"] [--cards 0,1 | --workers N]

A plan is a .tsv (a name, a tab, flags of the trainer; # begins a comment) or a .json ([{"name": ..., "flags": ...}]). A grid runs every
combination of its values, the last flag's fastest. A run is a folder of DIR with its log.jsonl, its output and run.json; its checkpoint is
removed. Called again, a sweep keeps what has finished, starts again what has not, and prints all of it; it takes the place of no result of
other flags or of another plan, and it ends where a run has other data than those before it had under the same names. DIR/results.tsv has
a line a run, the failed ones last, and DIR/summary.md a row a setting, which joins the runs that differ in --seed alone. Steps to a loss:
between the two validations around it, along a line; seconds: those steps at the run's median time. Exit 1 where a run has failed or none
has ended, 2 for bad input.
"""
import fcntl
import fnmatch
import itertools
import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from comparison import (EXIT_RUN, Output, Parser, built_trainer, check_output, commit_of, duration, end_with, fail, integer, provenance, pyplot, save_picture,
                        uninterrupted)
from run_log import Log, log_path

NAME, FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*"), re.compile(r"--?[A-Za-z]")
MARK = ".sweep"  # in the folder of a run: it may be removed for the run's next try
SUMMARY = "| flags | runs | validation loss |"  # how the table of summary.md begins
COLUMNS = ["name", "state", "steps", "val_loss", "best_val_loss", "steps_to", "seconds_to", "ms", "seconds", "flags"]


class Run(NamedTuple):
    name: str
    flags: list


# ---- the plan ----

def words(text, place):
    try:
        return shlex.split(text)
    except ValueError as error:
        fail(f"{place}: flags cannot be read: {error}")


def read_tsv(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            name, tab, flags = line.partition("\t")
            if not tab:
                fail(f"{path}:{number}: expected a name, a tab and flags, found {line[:40]!r}")
            yield Run(name.strip(), words(flags, f"{path}:{number}"))


def read_json(path, text):
    try:
        rows = [(str(row["name"]), row["flags"]) for row in json.loads(text)]
    except (ValueError, KeyError, TypeError):
        fail(f'{path}: expected [{{"name": ..., "flags": ...}}, ...]')
    for number, (name, flags) in enumerate(rows, 1):
        if not isinstance(flags, str):
            fail(f"{path}: run {number}: expected flags in one text, found {flags!r}")
        yield Run(name, words(flags, f"{path}: run {number}"))


def read_plan(path):
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--plan {path}: {getattr(error, 'strerror', None) or 'expected text'}")
    return list((read_json if path.endswith(".json") else read_tsv)(path, text))


def read_grid(axes):
    """Every combination of flags with values between commas; a name has those that vary."""
    parsed = []
    for axis in axes:
        flag, _, values = axis.strip().partition(" ")
        values = [value.strip() for value in values.split(",")]
        if not flag.startswith("-") or "" in values:
            fail(f"--grid: expected a flag and values, such as '--lr 3e-4,6e-4', found {axis!r}")
        parsed.append([(flag, value) for value in values])
    varied = [i for i, pairs in enumerate(parsed) if len(pairs) > 1]
    runs = []
    for combination in itertools.product(*parsed):
        parts = [f"{combination[i][0].lstrip('-')}-{combination[i][1]}" for i in varied] or ["run"]
        runs.append(Run(re.sub(r"[^A-Za-z0-9._+-]+", "-", "_".join(parts)), [word for pair in combination for word in pair]))
    return runs


def check_plan(runs, common=()):
    """The runs, and the flags that all of them have."""
    if not runs:
        fail("no run in the plan")
    seen = set()
    for run in runs:
        if not NAME.fullmatch(run.name):
            fail(f"run {run.name!r}: expected a name of letters, digits and ._+-, which becomes a folder")
        if run.name in seen:
            fail(f"run {run.name}: named twice")
        flags = [word.partition("=")[0] for word in [*common, *run.flags] if FLAG.match(word)]
        if {"--out", "-o", "--resume", "-y"} & set(flags):
            fail(f"run {run.name}: --out and --resume are the sweep's to set")
        for flag in flags:
            if flags.count(flag) > 1:
                fail(f"run {run.name}: {flag} is given twice, by the run or by --flags")
        seen.add(run.name)


def check_names(flag, pattern, runs):
    """A pattern of a flag must be that of some run's name."""
    if not any(fnmatch.fnmatchcase(run.name, pattern) for run in runs):
        fail(f"{flag} {pattern}: no run has such a name; the first is {runs[0].name}")


# ---- what a run left ----

class Curve(NamedTuple):
    """Of a log: validations [(step, loss)], the median ms of a step, the steps asked for, whether the last one was a number."""
    val: list
    ms: float
    steps: int
    sound: bool

    @property
    def final(self):
        """The last validation, nan where it was no number or the steps after it were none."""
        return self.val[-1][1] if self.val and self.sound else math.nan


def read_curve(folder):
    """The curve of a run's log.jsonl; a line that a kill tore ends it."""
    log = Log(log_path(folder))
    try:
        with open(log.path, encoding="utf-8") as file:
            for line in file:
                log.add(line)
    except (OSError, ValueError):
        pass
    val = [(row["step"], math.nan if row["val_loss"] is None else row["val_loss"]) for row in log.vals]
    last = log.steps[-1] if log.steps else {}
    sound = all(last.get(name, 0) is not None for name in ("loss", "norm"))
    return Curve(val, math.nan if log.median("ms") is None else log.median("ms"), log.flag("steps"), sound)


def texts_of(folder):
    """{(part, the flag that names it, the names of all data): fingerprint} by the header of a run's log; None before there is one. A log
    of an earlier trainer has no fingerprint."""
    log = Log(log_path(folder))
    try:
        with open(log.path, encoding="utf-8") as file:
            log.add(file.readline())
    except (OSError, ValueError):
        return None
    if not log.headers:
        return None
    train, val, tokenizer = log.flag("train"), log.flag("val"), log.headers[0].get("tokenizer")
    names = json.dumps([train, val, tokenizer])  # other flags may well mean other data, in one sweep
    parts = {("training", f"--train {train}", names): "train_fingerprint",
             ("validation", f"--train {train}" if val is None else f"--val {val}", names): "val_fingerprint"}
    return {text: log.headers[0][field] for text, field in parts.items() if log.headers[0].get(field)}


def read_record(folder):
    """What the sweep noted when a run ended; {} before that."""
    try:
        with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
            record = json.load(file)
            return record if isinstance(record, dict) else {}
    except (OSError, ValueError):
        return {}


def steps_to(curve, loss):
    """Steps until the validation loss is at most `loss`, between the two validations around it; None: never."""
    before = None
    for step, value in curve.val:
        if value <= loss:
            return step if before is None else before[0] + (step - before[0]) * (before[1] - loss) / (before[1] - value)
        before = (step, value) if not math.isnan(value) else None
    return None


def finished(record):
    """Whether a run has ended with a result: with its last validation, be it of weights that diverged."""
    return record.get("state") in ("done", "diverged")


def read(path):
    """Its text, '' where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def finished_in(path):
    """The names of those that have a line in a results.tsv."""
    rows = [dict(zip(COLUMNS, line.split("\t"))) for line in read(path).split("\n") if not line.startswith("#")]
    return [row["name"] for row in rows if finished(row)]


# ---- running ----

class Sweep:
    def __init__(self, runs, args):
        self.runs, self.args = runs, args
        self.common = words(args.flags, "--flags")
        self.begun = time.monotonic()
        self.slots = [{"CUDA_VISIBLE_DEVICES": card} for card in args.cards] if args.cards else [{}] * args.workers
        self.walls = [record["seconds"] for record in (self.record(run) for run in runs) if "seconds" in record]
        self.left_out = 0
        self.texts = {}  # a text of texts_of: (its fingerprint, the folder of the first run that had it)
        self.compared = set()  # the names of runs whose texts were
        self.problem = None  # an error line: why the sweep ends before its runs do

    def folder(self, run):
        return os.path.join(self.args.out, run.name)

    def flags(self, run):
        return self.common + run.flags

    def record(self, run):
        record = read_record(self.folder(run))
        return record if finished(record) else {}

    def check_texts(self, runs):
        """Whether runs have the data that those before them had under the same names; else self.problem says which has not."""
        for run in [run for run in runs if run.name not in self.compared]:
            folder, texts = self.folder(run), texts_of(self.folder(run))
            if texts is not None:
                self.compared.add(run.name)
            for text, found in (texts or {}).items():
                expected, first = self.texts.setdefault(text, (found, folder))
                if found != expected:
                    part, flag, _ = text
                    self.problem = (f"{folder}: {flag} has other {part} data than it had in {first}: expected fingerprint {expected}, found {found}; "
                                    "hint: another --out, or the data as they were")
        return not self.problem

    def check_results(self):
        """Ends the program where a run would take the place of another's result, or results are of other data."""
        if not self.check_texts([run for run in self.runs if self.record(run)]):
            fail(self.problem)
        for run in self.runs:
            record = read_record(self.folder(run))
            flags = record.get("flags")
            if finished(record) and flags != self.flags(run):
                was = shlex.join(map(str, flags)) if isinstance(flags, list) else "not known"
                fail(f"{self.folder(run)}: holds the result of other flags: {was}; hint: another --out or name, or remove it")
        for name, mark in (("results.tsv", "\t".join(COLUMNS)), ("summary.md", SUMMARY)):
            path = os.path.join(self.args.out, name)
            if os.path.lexists(path) and (os.path.islink(path) or mark not in read(path)):
                fail(f"{path}: is there, and not of a sweep; hint: another --out")
        path, names = os.path.join(self.args.out, "results.tsv"), {run.name for run in self.runs}
        others = [name for name in finished_in(path) if name not in names]
        if others:
            fail(f"{path}: has results of runs that are not in this plan, such as {others[0]}; hint: another --out, or a plan of all")

    def fits(self):
        """Whether one more run would end in time, if it takes as long as the longest of the last ones."""
        return not self.args.seconds or time.monotonic() - self.begun + max(self.walls[-3:], default=0) <= self.args.seconds

    def start(self, run, slot):
        folder = self.folder(run)
        if os.path.isdir(folder) and os.listdir(folder):
            if not os.path.exists(os.path.join(folder, MARK)):
                fail(f"{folder}: is there, and not of a sweep; hint: another --out or name")
            shutil.rmtree(folder)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, MARK), "w", encoding="utf-8"):
            pass
        environment = dict(os.environ, **slot)
        if self.args.threads:
            environment["OMP_NUM_THREADS"] = str(self.args.threads)
        command = [self.args.program, *self.flags(run), "--out", folder, "--model-only"]
        with open(os.path.join(folder, "output.txt"), "wb") as output:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def end(self, run, code, seconds):
        """Notes how a run ended, and removes its checkpoint."""
        folder, curve = self.folder(run), read_curve(self.folder(run))
        whole = bool(curve.val) and curve.val[-1][0] == curve.steps
        diverged = code == EXIT_RUN and (whole or not curve.sound)  # the trainer gives up, or refuses to save the weights
        state = "diverged" if diverged else "done" if whole and code == 0 else "failed"
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False) and not self.args.keep_checkpoints:
                shutil.rmtree(entry.path)
        with open(os.path.join(folder, "run.json"), "w", encoding="utf-8") as file:
            json.dump({"flags": self.flags(run), "state": state, "exit": code, "seconds": round(seconds, 3)}, file)
        if state != "failed":
            self.walls.append(seconds)
        said = f"val loss {curve.final:.4f}  {curve.ms:.1f} ms a step" if state == "done" else f"exit {code}: {last_line(folder)}"
        print(f"{run.name}: {state}  {said}  {seconds:.1f} s", flush=True)

    def run_all(self):
        waiting = [run for run in self.runs if not self.record(run)]
        print(f"{len(self.runs)} runs, {len(self.runs) - len(waiting)} finished before", flush=True)
        free, running = list(self.slots), []
        try:
            while waiting or running:
                while waiting and free and self.fits():
                    slot = free.pop(0)
                    with uninterrupted():
                        running.append((waiting[0], slot, self.start(waiting.pop(0), slot), time.monotonic()))
                if not running:
                    break
                time.sleep(0.02)
                ended = [entry for entry in running if entry[2].poll() is not None]
                if not self.check_texts([run for run, *_ in running]):  # early, so that no hours go into what has no place here
                    break
                for entry in ended:
                    run, slot, process, begun = entry
                    running.remove(entry)
                    free.append(slot)
                    self.end(run, process.returncode, time.monotonic() - begun)
        finally:
            for _, _, process, _ in running:
                process.kill()  # a half run is worth nothing
                process.wait()
        self.left_out = len(waiting)


def last_line(folder):
    with open(os.path.join(folder, "output.txt"), encoding="utf-8", errors="replace") as file:
        return ([""] + [line.strip() for line in file if line.strip()])[-1]


# ---- results ----

def number_of(text):
    try:
        return float(text)
    except ValueError:
        return None


def target_loss(text, curves):
    """--to: a number, or the lowest final loss of the runs whose names a pattern matches. None without it."""
    if text is None:
        return None
    number = number_of(text)
    if number is not None:
        return number
    finals = [curve.final for run, curve in curves if fnmatch.fnmatchcase(run.name, text) and not math.isnan(curve.final)]
    return min(finals, default=None)


def without_seed(flags):
    """A setting: the flags of a run but for the seed."""
    kept, skip = [], False
    for word in flags:
        if not skip and word != "--seed" and not word.startswith("--seed="):
            kept.append(word)
        skip = word == "--seed"
    return " ".join(kept)


def shown(value, form=".4f"):
    return "" if value is None else "nan" if isinstance(value, float) and math.isnan(value) else format(value, form)


def result(run, curve, record, loss):
    to = None if loss is None else steps_to(curve, loss)
    best = min((value for _, value in curve.val if not math.isnan(value)), default=math.nan)
    return {"name": run.name, "state": record["state"], "steps": str(curve.steps), "val_loss": shown(curve.final if record["state"] == "done" else math.nan, ".6f"),
            "best_val_loss": shown(best, ".6f"), "steps_to": shown(to, ".0f"), "seconds_to": shown(None if to is None else to * curve.ms / 1000, ".2f"),
            "ms": shown(curve.ms, ".3f"), "seconds": shown(record["seconds"], ".1f"), "flags": " ".join(run.flags)}


def mean(values):
    return statistics.fmean(values) if values else None


def summarise(rows):
    """[cells] for each setting, the lowest loss first; runs that diverged stand at the end."""
    settings = {}
    for row in rows:
        settings.setdefault(without_seed(row["flags"].split()), []).append(row)
    lines = []
    for flags, members in settings.items():
        losses, to = [float(row["val_loss"]) for row in members], [row for row in members if row["steps_to"]]
        every = len(to) == len(members)
        lines.append((mean(losses), [
            f"`{flags}`", str(len(members)), shown(mean(losses)), shown(max(losses) - min(losses)) if len(members) > 1 else "",
            shown(mean([float(row["steps_to"]) for row in to]) if every else None, ".0f"),
            shown(mean([float(row["seconds_to"]) for row in to]) if every else None, ".1f"),
            shown(mean([float(row["ms"]) for row in members]), ".2f")]))
    return [cells for _, cells in sorted(lines, key=lambda line: (math.isnan(line[0]), line[0]))]


def write_results(folder, rows, loss, about):
    table = Output(os.path.join(folder, "results.tsv"))
    for name, text in about:
        table.write(f"# {name}: {text}\n")
    table.write("\t".join(COLUMNS) + "\n")
    for row in rows:
        table.write("\t".join(row[column] for column in COLUMNS) + "\n")
    table.close()
    rows = [row for row in rows if finished(row)]
    to = "a loss" if loss is None else f"{loss:.4f}"
    lines = [f"- {name}: {text}" for name, text in about]
    lines += ["", f"{SUMMARY} spread | steps to {to} | seconds to {to} | ms a step |", "|---|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(cells) + " |" for cells in summarise(rows)]
    text = "\n".join(lines) + "\n"
    summary = Output(os.path.join(folder, "summary.md"))
    summary.write(text)
    summary.close()
    print("\n" + text, end="", flush=True)


def plot(path, curves, loss):
    """Validation loss against steps and against seconds of training."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for run, curve in curves:
        points = [(step, value) for step, value in curve.val if not math.isnan(value)]
        if not points:
            continue
        steps, values = zip(*points)
        axes[0].plot(steps, values, "o-", markersize=2.5, linewidth=1.2, label=run.name)
        axes[1].plot([step * curve.ms / 1000 for step in steps], values, "o-", markersize=2.5, linewidth=1.2)
    for axis, label in zip(axes, ("step", "seconds of training")):
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
        if loss is not None:
            axis.axhline(loss, color="gray", linestyle="--", linewidth=0.8)
    axes[0].set_ylabel("validation loss (nats a token)")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    save_picture(figure, path)


def report(sweep):
    """Writes and prints what the runs that have ended came to; returns how many have."""
    args, ended = sweep.args, [run for run in sweep.runs if sweep.record(run)]
    failed = [run for run in sweep.runs if read_record(sweep.folder(run)).get("state") == "failed"]
    curves = [(run, read_curve(sweep.folder(run))) for run in ended]
    loss = target_loss(args.to, curves)
    about = provenance(commit_of(args.program), "CPU,") + [("flags", args.flags)]
    if ended or failed:
        lines = curves + [(run, read_curve(sweep.folder(run))) for run in failed]
        write_results(args.out, [result(run, curve, read_record(sweep.folder(run)), loss) for run, curve in lines], loss, about)
    if args.plot and ended:
        wanted = args.plot_runs.split(",")
        plot(args.plot, [(run, curve) for run, curve in curves if any(fnmatch.fnmatchcase(run.name, w) for w in wanted)], loss)
    return len(ended)


def cards(text):
    return [card.strip() for card in text.split(",") if card.strip()]


def parse_arguments(arguments=None):
    parser = Parser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the sweep: a folder a run, results.tsv, summary.md")
    parser.add_argument("--plan", metavar="FILE", help="runs: a .tsv of names and flags, or a .json")
    parser.add_argument("--grid", nargs="+", metavar="AXIS", default=[], help="runs: '--lr 3e-4,6e-4' and so on, every combination")
    parser.add_argument("--flags", default="", metavar="FLAGS", help="of every run, before its own; one switch alone as --flags=--documents")
    parser.add_argument("--program", help="default ./train_gpt2cu, or ./train_gpt2 where only that is built")
    parser.add_argument("--cards", type=cards, default=[], metavar="LIST", help="GPUs, such as 0,1: one run at a time on each")
    parser.add_argument("--workers", type=integer(1, 4096), default=1, metavar="N", help="runs at a time, where --cards names none")
    parser.add_argument("--threads", type=integer(1, 4096), metavar="N", help="CPU threads of a run")
    parser.add_argument("--seconds", type=duration(0, 1e9), default=0, metavar="S",
                        help="no run begins that would not end in time, as long as the last ones took; 0: no limit")
    parser.add_argument("--to", metavar="LOSS", help="a loss, or a pattern of names: the lowest that those runs end with")
    parser.add_argument("--keep-checkpoints", action="store_true", help="of the weights, as each run ended")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves (png, svg or pdf); needs matplotlib")
    parser.add_argument("--plot-runs", metavar="NAMES", default="*", help="patterns of names between commas, default all")
    args = parser.parse_args(arguments)
    if bool(args.plan) == bool(args.grid):
        parser.error("expected one of --plan and --grid")
    return args


def lock(folder):
    """One sweep at a time in a folder. The lock goes with the program."""
    try:
        os.makedirs(folder, exist_ok=True)
        file = open(os.path.join(folder, ".lock"), "w")
    except OSError as error:
        fail(f"--out {folder}: cannot be written: {error.strerror}")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        fail(f"--out {folder}: another sweep is at work there", EXIT_RUN)
    return file


def main(arguments=None):
    args = parse_arguments(arguments)
    runs = read_plan(args.plan) if args.plan else read_grid(args.grid)
    check_plan(runs, words(args.flags, "--flags"))
    if args.to is not None and number_of(args.to) is None:
        check_names("--to", args.to, runs)
    for pattern in args.plot_runs.split(","):
        check_names("--plot-runs", pattern, runs)
    args.program = args.program or built_trainer()
    if not shutil.which(args.program):
        fail(f"--program {args.program}: not found; hint: make train_gpt2cu, or train_gpt2 for the CPU")
    if os.path.exists(os.path.join(args.out, "log.jsonl")):
        fail(f"--out {args.out}: holds a run of the trainer; hint: another folder")
    if args.plot:
        check_output(args.plot)  # what is missing is said before the runs
        pyplot()
    with lock(args.out):
        sweep = Sweep(runs, args)
        sweep.check_results()
        try:
            sweep.run_all()
        finally:  # ended by a signal, too
            ended = report(sweep)
    if sweep.problem:
        fail(sweep.problem)  # behind the table, where it is seen
    failed = len(runs) - ended - sweep.left_out
    if failed or sweep.left_out:
        print(f"{failed} failed, {sweep.left_out} not started for want of time", file=sys.stderr)
    return EXIT_RUN if failed or not ended else 0


if __name__ == "__main__":
    end_with(main)
