"""Where the rows of the tables come from: the lab, the lab under a profiler, the scripts of what is no row of it, the
trainer. A source is a function of a Run that gives rows and comment lines; what fails is counted and said."""
import csv
import functools
import io
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(HERE, "attention"), os.path.join(HERE, os.pardir, "scripts")]
import context  # noqa: E402  scripts/context.py
import random_shard  # noqa: E402  scripts/random_shard.py
import textbook  # noqa: E402  dev/attention/textbook.py
import walkthrough  # noqa: E402  dev/attention/walkthrough.py
from comparison import split_csv  # noqa: E402  scripts/comparison.py

LAB = "dev/lab"
QUICK = ["--seconds", "0.02", "--longest", "0.05"]
LIMIT_S = 120  # a command that takes longer is stopped
DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")


def bad_usage(text):
    """One line on stderr; the exit code."""
    print(f"error: tables.py: {text}", file=sys.stderr)
    return 2


class Run:
    """One call of tables.py: what it remembers between tables."""

    def __init__(self, quick):
        self.quick, self.failed = quick, 0
        self.folder = tempfile.TemporaryDirectory()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def new_file(self, name):
        """Path of a file that the next command writes: what an earlier one wrote there is gone."""
        if os.path.exists(self.path(name)):
            os.remove(self.path(name))
        return self.path(name)

    def fail(self, what, text):
        self.failed += 1
        print(f"FAIL {what}: {' '.join(text.split())[-300:]}")

    @staticmethod
    def lab(*words):
        """What the lab prints; where it fails there is nothing to be done: one line, exit code 2."""
        try:
            done = subprocess.run([LAB, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        except OSError as error:
            sys.exit(bad_usage(f"{LAB}: {error.strerror}; hint: make dev/lab"))
        if done.returncode:
            sys.exit(bad_usage(f"{LAB} {' '.join(words)}: exit code {done.returncode}: {' '.join(done.stdout.split())[-200:]}"))
        return done.stdout

    @functools.cached_property
    def variants(self):
        """(op, name) of all rows that this lab has: one built without nvcc has the CPU's alone."""
        listed = self.lab("--list")
        op, found = "", set()
        for line in listed.splitlines():
            if not line.startswith(" "):
                op = line
            elif "[not here" not in line:
                found.add((op, line.split()[0]))
        return found

    @functools.cached_property
    def provenance(self):
        """Comment lines of commit, machine and date, as the lab writes them."""
        path = self.path("provenance.csv")
        self.lab("attention_forward", "--variant", "cpu", "--once", "-T", "8", "--batch-tokens", "1", "--head-size", "16", "--channels", "16",
                 "--causal", "1", "--csv", path)
        with open(path, encoding="utf-8") as file:
            return [line for line in file.read().splitlines() if line.startswith("# ") and not line.startswith("# command")]

    @property
    def has_gpu(self):
        return any(line.startswith("# gpu ") for line in self.provenance)


# ---- the lab ----


def lab_words(run, ops, variants, lengths, more):
    """A command line of the rows that this machine has, or None."""
    names = [name for name in variants.split(",") if any((op, name) in run.variants for op in ops)]
    ops = [op for op in ops if any((op, name) in run.variants for name in names)]
    sizes = ["-T", lengths] if lengths else []
    quick = QUICK if run.quick and "--check" not in more else []
    return [LAB, *ops, "--variant", ",".join(names), *sizes, *more, *quick] if names else None


def read_lab(path, output):
    """Rows and comments of the lab's CSV, none where it wrote none; its skip lines are comments, too."""
    if not os.path.exists(path):
        return [], []
    with open(path, encoding="utf-8") as file:
        reader, comments = split_csv(file.read())
    skipped = ["# " + " ".join(line.split()) for line in output.splitlines() if line.startswith("skip ")]
    comments = [re.sub(r" --(csv|roofs) \S+", "", line) for line in comments]
    comments = [re.sub(r"^# command \S+", f"# command {LAB}", line) for line in comments]  # under ncu the lab's name is its path
    return list(reader), comments + skipped


def call(run, words):
    """Output and success of a command, which is said where it fails."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        run.fail(" ".join(words), f"stopped after {LIMIT_S} s")
        return "", False
    if done.returncode:
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")] or done.stdout.strip().splitlines()[-1:]
        run.fail(" ".join(words), f"exit code {done.returncode}: {' '.join(failed[:3])}")
    return done.stdout, done.returncode == 0


def lab(ops, variants, lengths, *more):
    """Timed rows, or with --check checked ones; lengths "": the op's own sizes."""

    def source(run):
        path = run.new_file("lab.csv")
        kind = [] if "--check" in more else ["--time", "--roofs", run.path("roofs")]
        words = lab_words(run, ops.split(","), variants, lengths, [*more, *kind, "--csv", path])
        if not words:
            return [], []
        output, _ = call(run, words)
        return read_lab(path, output)

    return source


def measured_mbytes(output):
    """Millions of bytes that device memory gave and took, of every call in the profiler's CSV."""
    lines = output[output.index('"ID"'):].splitlines() if '"ID"' in output else []
    calls, begun = [], set()
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        if row["Kernel Name"].startswith("lab_call_begins_kernel"):
            calls += [0] if row["ID"] not in begun else []
            begun.add(row["ID"])
        elif calls and row["Metric Name"] in DRAM:
            calls[-1] += float(row["Metric Value"].replace(",", "")) / 1e6
    return calls


def profiled(op, variants, lengths, *more):
    """Rows called once under ncu, with the bytes that it counts; without ncu the formulas alone, and a line that says so."""

    def source(run):
        path = run.new_file("once.csv")
        words = lab_words(run, [op], variants, lengths, [*more, "--once", "--csv", path])
        if not words:
            return [], []
        ncu = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--metrics", ",".join(DRAM), "--csv", "--print-units", "base"]
        try:
            done = subprocess.run([*ncu, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
            output, mbytes = done.stdout, measured_mbytes(done.stdout)
        except (OSError, subprocess.TimeoutExpired) as error:
            output, mbytes = str(error), []
        if not mbytes:
            print(f"skip the bytes measured by ncu: {' '.join(output.split())[-200:]}")
            output, _ = call(run, words)
        rows, comments = read_lab(path, output)
        on_gpu = [row for row in rows if row["variant"] not in ("cpu", "textbook")]
        if mbytes and len(mbytes) != len(on_gpu):
            run.fail("ncu", f"saw {len(mbytes)} of {len(on_gpu)} calls")
        for row, value in zip(on_gpu, mbytes):
            row["mbytes_measured"] = f"{value:.6g}"
        return rows, [line.replace("# command ", "# command " + " ".join(ncu) + " ") if mbytes else line for line in comments]

    return source


# ---- scripts ----


def python_rows(run):
    """Pure Python: one query, and as many queries as keys."""
    rows = []
    for n in (8, 16, 32, 64):
        for queries in (1, n):
            ms, same = textbook.measure(n, queries, nodes=queries * n <= 256)
            if not same:
                run.fail("dev/attention/textbook.py", f"numbers and nodes disagree at N = {n}")
            rows += [{"kind": "time", "op": "attention_forward", "variant": name, "dtype": "fp64", "T": queries, "Tk": n, "ms": f"{value:.6g}"}
                     for name, value in ms.items()]
    return rows, [*run.provenance, "# command dev/attention/textbook.py"]


def framework_rows(run):
    """PyTorch on the GPU, where both are there."""
    if not run.has_gpu:
        return [], []
    words = [sys.executable, os.path.join(HERE, "attention", "framework.py"), "8", "16", "32", "64"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S)
    if done.returncode:
        print(f"skip the rows of PyTorch: {' '.join(done.stderr.split())[-200:]}")
        return [], []
    return list(csv.DictReader(io.StringIO(done.stdout))), ["# command dev/attention/framework.py 8 16 32 64"]


def walkthrough_rows(run):
    lines, steps, difference = walkthrough.walk()
    if difference > 1e-15:
        run.fail("dev/attention/walkthrough.py", f"differs from the plain softmax by {difference:.1e}")
    want = walkthrough.plain()
    rows = [{"variant": name, "keys": step["keys"], **{k: f"{v:.9f}" for k, v in step.items() if k != "keys"}, "value": f"{value:.9f}"}
            for step in steps for name, value in (("o0 / l", step["o0_l"]), ("o1 / l", step["o1_l"]))]
    rows += [{"variant": f"plain softmax, {d}", "keys": step["keys"], "value": f"{want[d]:.9f}"} for d in range(2) for step in steps]
    return rows, [*run.provenance, "# command dev/attention/walkthrough.py", *(f"# | {line}" for line in lines)]


# ---- the trainer ----


def trainer_rows(lengths, modes, steps):
    """Steps, the forward pass alone and sampling of ./train_gpt2cu; only flash samples, as all ways sample alike."""

    def source(run):
        if not run.has_gpu or not os.access(context.PROGRAM, os.X_OK):
            print(f"skip the trainer's rows: {'no GPU' if not run.has_gpu else context.PROGRAM + ' is missing; hint: make train_gpt2cu'}")
            return [], []
        shard, rows = run.path("tables_train_000001.bin"), []
        random_shard.write(shard)
        for mode in modes:
            for seq in lengths[:1] if run.quick else lengths:
                flags = ["--steps", str(steps), *(["--sample-tokens", "0"] if mode != "flash" else [])]
                row = context.run(seq, mode, shard, run.path(f"{mode}_{seq}"), flags, with_inference=True)
                if row is None:
                    run.fail(context.PROGRAM, f"T = {seq}, {mode}")
                    continue
                rows.append({"kind": "train", "variant": row.pop("mode"), "Tk": seq, **row})
        modes_text = "|".join(f"{mode} ({' '.join(context.MODES[mode])})" for mode in modes)
        return rows, [*run.provenance, f"# command train_gpt2cu --model d12 --batch 1 --seq T --steps {steps} ..., {modes_text}: scripts/context.py"]

    return source
