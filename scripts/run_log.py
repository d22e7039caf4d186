"""A run as its log.jsonl tells it, for plot.py, report.py, to_tensorboard.py and sweep.py."""
import bisect
import glob
import json
import math
import os
import shlex
import statistics

from comparison import fail

# The lines by what they hold, each with the list that it goes to. "run" is the header: one of the run, one each time it is resumed.
KINDS = {"run": "headers", "loss": "steps", "val_loss": "vals", "acc_norm": "scores", "sample": "samples", "checkpoint": "saves",
         "save_failed": "failed_saves"}
TEXTS = ("sample", "checkpoint", "save_failed", "chosen", "evaluated")


def log_path(path):
    """The log of a run's folder, or the file itself."""
    return os.path.join(path, "log.jsonl") if os.path.isdir(path) else path


def other_log(path):
    """Where `path` is no log, but runs lie beside it: a hint that names one."""
    folder, file = os.path.split(path)
    runs = sorted(glob.glob(os.path.join(glob.escape(folder), "*", file))) if file == "log.jsonl" else []
    return f"; hint: {os.path.dirname(runs[0])} is a run" if runs else ""


def _is(value, *types):
    return isinstance(value, types) and not isinstance(value, bool)


def _is_header(run):
    if not isinstance(run, dict) or not _is(run.get("first_step", 0), int) or not _is(run.get("parameters") or 0, int):
        return False
    argv = run.get("argv") or []
    return isinstance(argv, list) and all(isinstance(word, str) for word in argv)


def parse(line):
    """(kind, row) of a line, or None for one of no kind that is known; ValueError where it is no line of a log."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError
    kind = next((kind for kind in KINDS if kind in row), None)
    if kind == "run":
        if not _is_header(row["run"]):
            raise ValueError
        return kind, row["run"]
    if kind is None:
        return None
    if not _is(row.get("step"), int) or not 0 <= row["step"] < 1 << 63:
        raise ValueError
    for name, value in row.items():
        if value is not None and not (isinstance(value, str) if name in TEXTS else _is(value, int, float)):
            raise ValueError
    return None if "evaluated" in row else (kind, row)  # --eval-only, perhaps of other data or another model: no point of the run's curve


def is_torn(line):
    """What a kill or a full disk left of a line, which the trainer may have ended to go on behind it; of one that is no JSON."""
    begin = line.rstrip("\n\0")  # a file system may end a file that a power cut left in zeros
    return any(begin.startswith(head) or head.startswith(begin) for head in ('{"run":', '{"step":'))


def command_of(header):
    """The command of a run as a shell takes it: names with spaces and patterns in quotes."""
    return shlex.join(map(str, header.get("argv") or []))


class Log:
    """The rows of a log, by kind, in its order: headers, steps, vals, scores, samples, saves, failed_saves. name: the run's."""

    def __init__(self, path, name=None):
        self.path, self.name = path, name or path
        for rows in KINDS.values():
            setattr(self, rows, [])
        self._last_steps, self._seconds = [], []
        self._parts = []  # (first step, tokens before it, tokens a step) of what each header begins

    def add(self, line):
        """Takes a line in; returns what parse() does."""
        parsed = parse(line)
        if parsed:
            kind, row = parsed
            if kind == "loss":
                self._add_step(row)
            elif kind == "run":
                self._cut(row.get("first_step") or 0)
            getattr(self, KINDS[kind]).append(row)
            if kind == "run":
                self._add_part(row.get("first_step") or 0)
        return parsed

    def take(self, line, number):
        """add() of a line of the file. Half a line is passed over; one that is none of a log ends the program."""
        try:
            return self.add(line)
        except (ValueError, RecursionError) as error:
            if not isinstance(error, json.JSONDecodeError) or not is_torn(line):
                fail(f"{self.path}:{number}: expected a line of a log.jsonl, found {line[:40].strip()!r}")
        return None

    def must_have_steps(self):
        if not self.steps and not self.vals:
            fail(f"{self.path}: no step in it" + ("; hint: the run has only begun" if self.headers else ""))

    def _add_step(self, row):
        before = self._last_steps[-1] if self._last_steps else 0
        passed = self._seconds[-1] if self._seconds else 0.0
        self._last_steps.append(row["step"])
        # Of a log that keeps every tenth step, each stands for ten.
        self._seconds.append(passed + 1e-3 * (row.get("ms") or 0) * max(row["step"] - before, 0))

    def _cut(self, step):
        """A run that is resumed from this step takes the later ones again. In the file they are gone already."""
        n = bisect.bisect_right(self._last_steps, step)
        if n == len(self._last_steps):
            return
        del self._last_steps[n:], self._seconds[n:]
        for kind, rows in KINDS.items():
            if kind != "run":
                setattr(self, rows, [row for row in getattr(self, rows) if row["step"] <= step])

    def _add_part(self, first_step):
        """Tokens are counted as far as the newest header tells how many a step has; a resumption takes back what lies behind it."""
        tokens = self.tokens_at(first_step)
        self._parts = [part for part in self._parts if part[0] < first_step]
        self._parts.append((first_step, tokens, self.flag("tokens-per-step") or 0))

    def flag(self, name, header=-1):
        """The value of a flag in the newest header; None where it is not known."""
        flags = self.headers[header].get("flags") if self.headers else None
        return flags.get(name) if isinstance(flags, dict) else None

    def knows_tokens(self):
        return bool(self.headers) and all(_is(self.flag("tokens-per-step", i), int) for i in range(len(self.headers)))

    def tokens_at(self, step):
        """Tokens trained on by the end of a step. A resumed run may take other steps than it did before."""
        at = bisect.bisect_right(self._parts, (step, math.inf)) - 1
        first_step, tokens, a_step = self._parts[at] if at >= 0 else (step, 0, 0)
        return tokens + (step - first_step) * a_step

    def knows_time(self):
        return any(row.get("ms") for row in self.steps)

    def seconds_at(self, step):
        """Seconds of training by the end of a step: the sum of the steps' times, without validation, samples, saves and pauses."""
        at = bisect.bisect_right(self._last_steps, step)
        return self._seconds[at - 1] if at else 0.0

    def points(self, rows, field):
        """[(step, value)] of what is known; a null (NaN) is left out."""
        return [(row["step"], row[field]) for row in getattr(self, rows) if row.get(field) is not None]

    def median(self, field):
        """Of the steps; None where none has it."""
        values = [value for _, value in self.points("steps", field)]
        return statistics.median(values) if values else None


def read_log(path, name=None):
    """The Log of a file or a run's folder. Ends the program where it is no log or has no step; half a line, of a run that goes
    on or was killed, is left out."""
    path = log_path(path)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # half a line may end in half a letter
            lines = list(file)  # by newlines alone: a sample's text may hold other separators
    except OSError as error:
        fail(f"{path}: {error.strerror}{other_log(path)}")
    log = Log(path, name)
    for number, line in enumerate(lines, 1):
        log.take(line, number)
    log.must_have_steps()
    return log


def _default_name(path, n_parts):
    """The last parts of a run's folder; log.1.jsonl and its like, of an earlier run there, keep their own name."""
    folder, _, file = os.path.abspath(log_path(path)).rpartition(os.sep)
    parts = folder.split(os.sep)[-n_parts:] + ([] if file == "log.jsonl" else [file])
    return os.sep.join(part for part in parts if part)


def named(specs):
    """[(name, path)] of [NAME=]PATH; without a name, as much of the folder's path as tells it from the others. Names differ."""
    pairs = []
    for spec in specs:
        name, _, path = ("", "", spec) if os.path.exists(spec) else spec.rpartition("=")
        if not path:
            fail(f"{spec!r}: expected [NAME=]RUN, a run's folder or a log.jsonl, found no path; hint: NAME=RUN is one word")
        pairs.append((name, path))
    paths = [os.path.realpath(log_path(path)) for _, path in pairs]
    for path in paths:
        if paths.count(path) > 1:
            fail(f"{path}: given twice")
    for n_parts in range(1, 64):
        names = [name or _default_name(path, n_parts) for name, path in pairs]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is None:
            return [(name, path) for name, (_, path) in zip(names, pairs)]
    return fail(f"two runs are named {double}; hint: NAME=PATH with another name")


def read_logs(specs):
    """The Logs of [NAME=]PATH, by name."""
    return [read_log(path, name) for name, path in named(specs)]
