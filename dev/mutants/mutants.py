#!/usr/bin/env python3
"""Puts each fault of a table into a copy of the tree, and runs the tests until one sees it. README.md says how a row is written.

Usage: make mutants [JOBS=N] [ONLY=TEXT] [KEEP=1] [KIND=host|cuda] [QUICK=S] [RECORD=1]
JOBS: workers (all cores). ONLY: rows whose "file: description" has the regular expression TEXT. KEEP: rows that were killed by an earlier state of the tree
stay killed, those of killed.txt too. KIND: one table. QUICK: of each row's tests only the first, up to S seconds of them: what survives those is said, not recorded. RECORD: writes killed.txt, which test saw each fault. All else lies in build/mutants/; a run that was interrupted goes on where it was.
Exit code: 0 within the limits, 1 below them, 2 bad usage or a tree whose own tests fail."""
import concurrent.futures
import contextlib
import fcntl
import filecmp
import glob
import hashlib
import json
import os
import queue
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

LIMIT_ALL, LIMIT_FOLDER = 95, 90  # percent killed, of the rows that are not equivalent
CARD_SLOTS = 3  # test programs on the card at once
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PLACE = os.path.join(ROOT, "build", "mutants")
RESULTS = os.path.join(PLACE, "results.tsv")
KILLED = os.path.join(HERE, "killed.txt")
TABLES = {"host": "host.txt", "cuda": "cuda.txt"}
MEMORY = 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # address space of a test of the CPU: a fault may ask for all

# The tests that are likely to see a fault in files whose names begin so, beside the test that has the file's name and those
# that saw an earlier fault in the same file: first what saw the most faults a second; then all others, the short ones first.
LIKELY = [
    ("llmc/cpu/attention", "test_cpu_attention test_sampler"),
    ("llmc/cpu/device", "test_cpu_device"),
    ("llmc/cpu/parallel", "test_cpu_device test_cpu_ops"),
    ("llmc/cpu", "test_dropout test_program test_cpu_ops test_cpu_device"),
    ("llmc/comm/", "test_place test_rendezvous test_launch test_ranks.sh"),
    ("llmc/run/setup_ranks", "test_ranks.sh"),
    ("llmc/model/comm", "test_comm"),
    ("llmc/model/gpt2_backward", "test_comm test_context test_program_context"),
    ("llmc/model/gpt2.c", "test_comm test_queue test_dropout"),
    ("llmc/model/optimizer", "test_optimizer test_sizes"),
    ("llmc/model/gpt2_muon", "test_optimizer test_program test_elastic.sh"),
    ("llmc/model/newton_schulz", "test_program"),
    ("llmc/cpu/muon", "test_program"),
    ("llmc/model/gpt2_leaves", "test_reproducible"),
    ("llmc/model/gpt2_ranks", "test_reproducible test_comm test_context test_elastic.sh"),
    ("llmc/model/gpt2_context", "test_context test_program_context"),
    ("llmc/model/gpt2_pass", "test_comm test_queue test_context"),
    ("llmc/model/gpt2_forward", "test_context"),
    ("llmc/model/exact_sum", "test_sum_tree test_cpu_ops"),
    ("llmc/model/gpt2_states", "test_comm test_elastic.sh"),
    ("llmc/model/gpt2_", "test_sizes test_init test_program_figures"),
    ("llmc/model/gpt2", "test_program test_program_runs test_checkpoint test_gpt2"),
    ("llmc/checkpoint/checkpoint", "test_checkpoint test_keep test_manifest test_checkpoint_faults test_disk.sh test_cli.sh"),
    ("llmc/base/files", "test_files test_calls test_checkpoint test_checkpoint_faults test_disk.sh"),
    ("llmc/base/file_kind", "test_dataloader test_tokens.sh"),
    ("llmc/base/format", "test_console test_said test_program_setup"),
    ("llmc/base/version", "test_cli.sh test_checkpoint"),
    ("llmc/base/directory", "test_disk.sh test_checkpoint test_keep"),
    ("llmc/checkpoint/gguf", "test_export"),
    ("llmc/checkpoint/manifest", "test_manifest test_keep"),
    ("llmc/checkpoint/pieces", "test_checkpoint test_elastic.sh"),
    ("llmc/base/dtype", "test_compare test_export test_safetensors"),
    ("llmc/base/utf8", "test_json test_terminal test_tokenizer test_tokens.sh"),
    ("llmc/checkpoint/hf_config", "test_import test_tokens.sh"),
    ("llmc/checkpoint/hf_", "test_checkpoint test_import test_safetensors"),
    ("llmc/checkpoint/llmc_bin", "test_import"),
    ("llmc/checkpoint/snapshot", "test_checkpoint test_disk.sh"),
    ("dev/test/debug_state", "test_debug_state"),
    ("llmc/base/json", "test_json test_log test_manifest test_flags"),
    ("llmc/tokenizer/bpe", "test_tokenizer test_tokenizer_files"),
    ("llmc/tokenizer/tokenizer", "test_tokenizer test_tokenizer_files test_tokens.sh"),
    ("llmc/tokenizer/vocabulary", "test_tokenizer_files test_tokenizer_json test_tokenizer test_tokens.sh"),
    ("llmc/data/shard", "test_shards test_dataloader"),
    ("llmc/data/token_stream", "test_dataloader test_shards test_mixtures.sh test_tokens.sh"),
    ("llmc/data/dataloader", "test_dataloader test_mixture test_mixtures.sh test_shards"),
    ("llmc/data/packing", "test_packing test_mixtures.sh"),
    ("llmc/data/mixture", "test_mixture test_mixtures.sh"),
    ("llmc/data/window_order", "test_dataloader test_program"),
    ("llmc/base/random", "test_dataloader test_program test_dropout"),
    ("llmc/run/flags", "test_flags test_said test_program_runs test_cli.sh"),
    ("llmc/run/settings", "test_flags test_said test_program_runs test_cli.sh"),
    ("llmc/run/console", "test_console test_said test_terminal test_program_figures"),
    ("llmc/base/error", "test_terminal test_cli.sh"),
    ("llmc/run/log", "test_log test_calls test_program test_disk.sh test_run.sh"),
    ("llmc/run/setup_tokenizer", "test_tokens.sh test_program_setup"),
    ("llmc/run/setup_data", "test_mixtures.sh test_ranks.sh"),
    ("llmc/run/samples", "test_samples.sh"),
    ("llmc/run/chat", "test_samples.sh"),
    ("llmc/run/flags_completion", "test_completion.sh"),
    ("llmc/run/setup.c", "test_samples.sh"),
    ("llmc/run/setup_model", "test_samples.sh test_mixtures.sh"),
    ("llmc/run/setup_output", "test_default_run.sh test_disk.sh test_cli.sh"),
    ("llmc/run/training_save", "test_training test_disk.sh test_program_runs test_run.sh test_ranks.sh"),
    ("llmc/run/setup", "test_training test_tokens.sh test_program_setup test_program_runs test_program_figures test_cli.sh test_program"),
    ("llmc/model/sampl", "test_sampler test_program_figures"),
    ("llmc/run/profile", "test_profile test_step.sh test_program_figures"),
    ("llmc/model/op_cost", "test_profile test_lab.sh"),
    ("llmc/base/terminal", "test_terminal test_console"),
    ("llmc/run/training", "test_training test_program test_program_runs test_program_figures test_run.sh"),
    ("llmc/run/stop", "test_stop test_run.sh test_training"),
    ("llmc/base/stack", "test_run.sh test_cli.sh"),
    ("train_gpt2", "test_program_runs test_program_figures test_run.sh test_cli.sh test_training test_program"),
    ("data/", "test_data.sh test_data_parts.sh"),
    ("scripts/", "test_script_parts.sh"),
]


def stop(message, code):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def source_of(name):
    """The path of a test's file below dev/test; "" where there is none."""
    found = glob.glob(f"dev/test/*/{name}", root_dir=ROOT)
    return found[0] if found else ""


# ---- the tables ----


class Row:
    def __init__(self, kind, number, file, fields, tests):
        self.kind, self.number, self.file = kind, number, file
        self.old, self.new = (text.replace("<NL>", "\n") for text in fields[:2])
        self.what, self.tests, self.equivalent = fields[2].strip(), tests, ""
        for field in fields[3:]:
            name, _, value = field.partition(":")
            if name.strip() == "equivalent":
                self.equivalent = value.strip()
            elif name.strip() == "tests":
                self.tests = value.strip()
            else:
                raise ValueError(f"unknown field '{field}'")
        key = "\0".join((file, self.old, self.new, self.tests))
        self.key = hashlib.sha256(key.encode()).hexdigest()[:16]
        self.status, self.by, self.seconds = "", "", 0.0

    def text(self, root=ROOT):
        """The file with the fault in it; None for a row that is stale."""
        try:
            with open(os.path.join(root, self.file), encoding="utf-8") as file:
                text = file.read()
        except OSError:
            return None
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None

    def name(self):
        return f"{TABLES[self.kind]}:{self.number}: {self.file}: {self.what}"


def read_table(kind):
    rows, file, tests = [], "", ""
    with open(os.path.join(HERE, TABLES[kind]), encoding="utf-8") as table:
        for number, line in enumerate(table, 1):
            line = line.rstrip("\n")
            if not line.strip() or line.startswith("# "):
                continue
            if line.startswith("file:"):
                file, tests = line[5:].strip(), ""
            elif line.startswith("tests:"):
                tests = line[6:].strip()
            else:
                fields = [field[1:] if i else field for i, field in enumerate(re.split(r" @@(?= |$)", line))]
                try:
                    rows.append(Row(kind, number, file, fields, tests))
                except (IndexError, ValueError) as error:
                    stop(f"{TABLES[kind]}:{number}: expected 'old @@ new @@ what', found '{line}' ({error})", 2)
    seen = {}
    for row in rows:
        if row.key in seen:
            stop(f"{TABLES[kind]}:{row.number}: the same fault as in line {seen[row.key]}", 2)
        seen[row.key] = row.number
    return rows


# ---- results of earlier runs ----


def read_killed(found, seen):
    """What killed.txt says, of whatever state of the tree."""
    if not os.path.exists(KILLED):
        return
    path = ""
    with open(KILLED, encoding="utf-8") as file:
        for line in file:
            if line.startswith("file:"):
                path = line[5:].strip()
            elif not line.startswith("#"):
                key, _, by = line.rstrip("\n").partition(" ")
                found[key, None] = ("killed", by)
                count(seen, path, by, True)


def write_killed():
    """Of each row of the tables, as the newest results say."""
    found, _ = read_results()
    lines, path = [], ""
    for row in sorted((row for name in TABLES for row in read_table(name)), key=lambda row: (row.file, row.key)):
        status, by = found.get((row.key, None), ("", ""))
        if status != "killed":
            continue
        if row.file != path:
            path = row.file
            lines.append(f"file: {path}")
        lines.append(f"{row.key} {by.split(' (')[0]}")
    with open(KILLED, "w", encoding="utf-8") as file:
        file.write("# Which test saw each fault: a row's key, the command. make mutants RECORD=1 writes it, KEEP=1 reads it.\n")
        file.write("\n".join(lines) + "\n")


def read_results():
    """The newest results: {(key, tree): (status, by)}, and {file: {test: [faults in it that it saw, that it was run for]}}."""
    found, seen = {}, {}
    read_killed(found, seen)
    if os.path.exists(RESULTS):
        with open(RESULTS, encoding="utf-8") as file:
            for line in file:
                fields = line.rstrip("\n").split("\t")
                if len(fields) < 6:
                    continue
                key, tree, status, by, _, path = fields[:6]
                found[key, tree] = found[key, None] = (status, by)
                if status == "killed":
                    count(seen, path, by.split(" (")[0], True)
    return found, seen


def count(seen, path, test, killed):
    counts = seen.setdefault(path, {}).setdefault(test, [0, 0])
    counts[0] += killed
    counts[1] += 1


def write_result(row, tree, lock):
    with lock, open(RESULTS, "a", encoding="utf-8") as file:
        file.write("\t".join((row.key, tree, row.status, row.by, f"{row.seconds:.1f}", row.file, row.what)) + "\n")


# ---- copies of the tree ----


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    return sorted(path for path in listed.decode().split("\0") if path and os.path.isfile(os.path.join(ROOT, path)))


def tree_hash(files):
    total = hashlib.sha256()
    for path in files:
        if path.startswith(("dev/mutants/", "dev/results/")) or path.endswith((".md", ".png")):
            continue
        with open(os.path.join(ROOT, path), "rb") as file:
            total.update(path.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return total.hexdigest()[:16]


def stamp(path):
    status = os.lstat(path)
    return status.st_mtime_ns, status.st_size


def snapshot(folder):
    return {os.path.relpath(os.path.join(where, name), folder): stamp(os.path.join(where, name))
            for where, _, names in os.walk(folder) for name in names}


class Copies:
    """The tree, built, and a copy of it for each worker, which is brought back to that state after each fault."""

    def __init__(self, kind, jobs):
        self.kind, self.folder = kind, os.path.join(PLACE, kind)
        self.base = os.path.join(self.folder, "base")
        cores = os.cpu_count() or 1
        self.threads = max(2, cores // jobs) if kind == "host" else 4
        self.build_jobs = max(1, cores // jobs)
        self.make_flags = ["NVCC="] if kind == "host" else ["GPU_ARCH=native", "BOUNDED_WAIT=1"]

    def environment(self, folder):
        # -Wno-error: a warning is no test. No commit: it would change, and what knows it be built again.
        return {**os.environ, "CFLAGS": "-Wno-error", "GIT_CEILING_DIRECTORIES": self.folder, "OMP_NUM_THREADS": str(self.threads),
                "OMP_WAIT_POLICY": "passive", "TMPDIR": os.path.join(folder, "tmp"), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8",
                "MAKEFLAGS": "", "TEXT": "", "FAILFAST": "1"}

    def make(self, folder, targets, jobs):
        command = ["make", "-s", f"-j{jobs}", *self.make_flags, *targets]
        return subprocess.run(command, cwd=folder, env=self.environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False)

    def refresh_base(self, files):
        """Copies what changed since last time, so that make builds only that again."""
        os.makedirs(self.base, exist_ok=True)
        wanted = set(files)
        listed = os.path.join(self.folder, "files")
        if os.path.exists(listed):
            with open(listed, encoding="utf-8") as file:
                for path in set(file.read().splitlines()) - wanted:
                    if os.path.exists(os.path.join(self.base, path)):
                        os.unlink(os.path.join(self.base, path))
        for path in files:
            source, target = os.path.join(ROOT, path), os.path.join(self.base, path)
            if not os.path.exists(target) or not filecmp.cmp(source, target, shallow=False):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(source, target)
        shutil.copyfile(os.path.join(self.base, "dev/README.md"), os.path.join(self.base, "data", "default.txt"))  # no download
        with open(os.path.join(self.base, "data", "default.source.txt"), "w", encoding="utf-8") as file:
            file.write("the README\n")
        with open(listed, "w", encoding="utf-8") as file:
            file.write("\n".join(files))

    def test_commands(self):
        """What make test runs, from its own words."""
        printed = subprocess.run(["make", "-n", *self.make_flags, "test"], cwd=self.base, env=self.environment(self.base),
                                 stdout=subprocess.PIPE, text=True, check=False).stdout
        lines = [line for line in printed.replace("\\\n", " ").splitlines() if "dev/test/run.sh" in line]
        if not lines:
            stop("make -n test: no line with dev/test/run.sh", 2)
        return shlex.split(lines[-1].split("dev/test/run.sh", 1)[1])

    def targets(self, command):
        program = shlex.split(command)[0]
        trainer = "train_gpt2" if self.kind == "host" else "train_gpt2cu"
        if program.endswith((".sh", ".py")):
            return [trainer, "build/lab_cpu"] if self.kind == "host" else [trainer]
        own = program[2:] if program.startswith("./") else program
        return [own] if os.path.basename(own).startswith(("test_ops", "test_gpt2cu")) else [own, trainer]  # some run the trainer

    def build_base(self, targets):
        os.makedirs(os.path.join(self.base, "tmp"), exist_ok=True)
        done = self.make(self.base, targets, os.cpu_count() or 1)
        if done.returncode:
            stop(f"the tree does not build:\n{done.stdout[-3000:]}", 2)
        self.state = snapshot(self.base)

    def worker(self, index):
        folder = os.path.join(self.folder, f"worker{index}")
        if os.path.exists(folder):
            restore(folder, self.base, self.state)
        else:
            shutil.copytree(self.base, folder, symlinks=True)
        return folder


def restore(folder, base, state):
    """Makes the copy what the base is: sources, objects and programs that changed, and nothing that tests left."""
    shutil.rmtree(os.path.join(folder, "tmp"), ignore_errors=True)
    found = snapshot(folder)
    for path in found.keys() - state.keys():
        os.unlink(os.path.join(folder, path))
    for path, wanted in state.items():
        if found.get(path) != wanted:
            os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
            if path in found:  # a program that a test has just been ended in may still be busy: not written over
                os.unlink(os.path.join(folder, path))
            shutil.copy2(os.path.join(base, path), os.path.join(folder, path))
    os.makedirs(os.path.join(folder, "tmp"), exist_ok=True)


# ---- one test ----

running, running_lock, ending = set(), threading.Lock(), threading.Event()


def kill_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def limits(kind):
    def apply():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if kind == "host":
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return apply


def run_test(copies, folder, command, limit, early=True):
    """Returns (passed, why not, output). `early`: a line that begins with FAIL ends it."""
    output_path = os.path.join(folder, "tmp", ".output")
    begun = time.monotonic()
    with open(output_path, "wb") as output, running_lock:
        process = subprocess.Popen(shlex.split(command), cwd=folder, env=copies.environment(folder), stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=limits(copies.kind))
        running.add(process)
    why = ""
    while not why and not ending.is_set():
        try:
            process.wait(0.05)
            break
        except subprocess.TimeoutExpired:
            pass
        if time.monotonic() - begun > limit:
            why = f"no end within {limit:.0f} s"
        elif early:
            with open(output_path, "rb") as file:
                text = file.read()
            if b"\nFAIL " in b"\n" + text:
                why = "FAIL"
    kill_group(process)
    process.wait()
    with running_lock:
        running.discard(process)
    with open(output_path, "rb") as file:
        text = file.read().decode(errors="replace")
    if not why and process.returncode:
        why = f"status {process.returncode}"
    elif not why and not re.search(r": \d+ passed, \d+ failed, \d+ skipped$", text.rstrip()):
        why = "no closing line"
    return not why, why, text


# ---- the rows of a kind ----


class Campaign:
    def __init__(self, kind, rows, jobs, quick=0.0):
        self.kind, self.rows, self.jobs, self.quick = kind, rows, jobs, quick
        self.copies = Copies(kind, jobs)
        self.lock, self.card = threading.Lock(), threading.Semaphore(CARD_SLOTS) if kind == "cuda" else contextlib.nullcontext()
        self.times, self.early = {}, {}

    def commands_of(self, row):
        """The row's own tests, by name, as commands."""
        commands = []
        for text in filter(None, (part.strip() for part in row.tests.split(";"))):
            name, _, rest = text.partition(" ")
            if name.startswith("test_gpt2"):
                path = "./" + name
            elif name.endswith((".sh", ".py")):
                path = source_of(name) or stop(f"{TABLES[row.kind]}:{row.number}: no test in dev/test/*/ is named {name}", 2)
            else:
                path = "build/" + name
            commands.append(f"{path} {rest}".strip())
        return commands

    def prepare(self, files, tree):
        """Builds the tree, and runs its own tests: their times, and that they pass."""
        self.tree = tree
        self.copies.refresh_base(files)
        if self.kind == "host":
            self.tests = self.copies.test_commands()
        else:
            waiting = [row for row in self.rows if not row.status]  # with KEEP=1 a few of all: their tests alone are run
            self.tests = sorted({command for row in waiting for command in self.commands_of(row)})
        begun = time.monotonic()
        self.copies.build_base(sorted({target for test in self.tests for target in self.copies.targets(test)}))
        print(f"{self.kind}: the tree is built ({time.monotonic() - begun:.0f} s)", flush=True)
        saved = os.path.join(self.copies.folder, "times.json")
        if os.path.exists(saved):
            with open(saved, encoding="utf-8") as file:
                known = json.load(file)
            if known["tree"] == tree and set(self.tests) <= set(known["times"]):
                self.times, self.early = known["times"], known["early"]
                return
            if self.quick:  # as they were: near enough to choose by
                self.times = {test: known["times"].get(test, 10.0) for test in self.tests}
                self.early = {test: known["early"].get(test, False) for test in self.tests}
                return
        self.time_tests()
        with open(saved, "w", encoding="utf-8") as file:
            json.dump({"tree": tree, "times": self.times, "early": self.early}, file)

    def time_tests(self):
        begun = time.monotonic()
        folder = self.copies.worker(0)
        for test in self.tests:
            start = time.monotonic()
            passed, why, text = run_test(self.copies, folder, test, 900, early=False)
            if not passed:
                stop(f"{test} fails on the tree itself ({why}):\n{text[-3000:]}", 2)
            if self.kind == "cuda" and re.search(r": 0 passed", text):
                stop(f"{test}: passes without a check on this machine; a row of {TABLES['cuda']} names it", 2)
            self.times[test] = time.monotonic() - start
            self.early[test] = "\nFAIL " not in "\n" + text
        restore(folder, self.copies.base, self.copies.state)
        print(f"{self.kind}: its tests pass ({time.monotonic() - begun:.0f} s)", flush=True)

    def reads_python(self, test):
        """Whether a test could see a fault in a script: it names one, or is one."""
        path = test if test.endswith((".sh", ".py")) else source_of(os.path.basename(test) + ".c")
        if not path:
            return False
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            return re.search(r"python|\.py\b|scripts/", file.read()) is not None

    def order(self, row, seen):
        own = self.commands_of(row)
        counts = seen.get(row.file, {})
        if self.kind == "cuda":
            return own
        script = row.file.endswith((".py", ".sh"))
        tests = [test for test in self.tests if not script or self.reads_python(test)]
        by_name = {os.path.basename(test): test for test in tests}
        stem = "test_" + os.path.splitext(os.path.basename(row.file))[0]
        likely = [*counts, by_name.get(stem, ""), by_name.get(stem + ".sh", ""), by_name.get(stem + ".py", "")]
        for prefix, names in LIKELY:
            if row.file.startswith(prefix):
                likely += [by_name.get(name, "") for name in names.split()]
        likely = [test for test in dict.fromkeys(likely) if test in tests]

        def rate(test):
            saw, runs = counts.get(test, (0, 0))
            return (saw + 1) / (runs + 2) / max(1, self.times[test])

        ordered = list(dict.fromkeys(own + sorted(likely, key=rate, reverse=True)))
        ordered += sorted(set(tests) - set(ordered), key=self.times.get)
        if not self.quick:
            return ordered
        chosen, left = [], self.quick
        for test in ordered:  # a long one does not keep out the short ones behind it
            seconds = self.times.get(test, 10.0)  # that of a part of a test, which a row names, is not measured
            if seconds <= left:
                chosen.append(test)
                left -= seconds
        return chosen or ordered[:1]

    def build(self, row, folder, tests):
        if row.file.endswith((".py", ".sh")):
            return True
        targets = sorted({target for test in tests for target in self.copies.targets(test)})
        if self.copies.make(folder, targets, self.copies.build_jobs).returncode == 0:
            return True
        row.status, row.by = "broken", "does not build"
        return False

    def try_row(self, row, folder, tests, seen):
        text = row.text(self.copies.base)  # the working tree may have changed since
        if text is None:
            row.status = "stale"
            return
        with open(os.path.join(folder, row.file), "w", encoding="utf-8") as file:
            file.write(text)
        for begin, end in ((0, 3), (3, 8), (8, None)):
            group = tests[begin:end]
            if not group:
                break
            if not self.build(row, folder, group):
                return
            for test in group:
                if ending.is_set():
                    return
                limit = max(10, 5 * self.times.get(test, 60)) if self.kind == "host" else 30 + 5 * self.times[test]
                with self.card:
                    passed, why, _ = run_test(self.copies, folder, test, limit, self.early.get(test, True))
                with self.lock:
                    count(seen, row.file, test, not passed)
                if not passed:
                    row.status, row.by = "killed", f"{test} ({why})"
                    return
        row.status = "survived"

    def work(self, index, waiting, seen, total):
        folder = self.copies.worker(index)
        while not ending.is_set():
            try:
                row = waiting.get_nowait()
            except queue.Empty:
                return
            begun = time.monotonic()
            try:
                with self.lock:
                    tests = self.order(row, seen)
                self.try_row(row, folder, tests, seen)
            finally:
                restore(folder, self.copies.base, self.copies.state)
            if ending.is_set():
                return
            row.seconds = time.monotonic() - begun
            if row.status != "survived" or not self.quick:
                write_result(row, self.tree, self.lock)
            print(f"[{total - waiting.qsize()}/{total}] {row.status:8} {row.seconds:5.0f} s  {row.name()}"
                  + (f"  [{row.by}]" if row.by else ""), flush=True)

    def run(self, files, tree, keep):
        found, seen = read_results()
        waiting = queue.Queue()
        for row in self.rows:
            if row.equivalent:
                row.status = "equivalent"
            known = found.get((row.key, tree)) or (keep and found.get((row.key, None)))
            if known and (known[0] == "killed" or (row.key, tree) in found):
                row.status, row.by = row.status or known[0], known[1]
            if not row.status:
                waiting.put(row)
        total = waiting.qsize()
        if not total:
            return
        self.prepare(files, tree)
        jobs = min(self.jobs, total)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            done = [pool.submit(self.work, index, waiting, seen, total) for index in range(jobs)]
            for future in concurrent.futures.as_completed(done):
                future.result()


# ---- the report ----


def percent(rows):
    killed = sum(row.status == "killed" for row in rows)
    counted = sum(row.status in ("killed", "survived") for row in rows)
    return killed, counted, 100.0 * killed / counted if counted else 100.0


def report(rows):
    """Prints the table by folder and what survived; whether the limits hold."""
    good = True
    for status, heading in (("stale", "stale: the old text is not in the file exactly once"), ("broken", "does not build"),
                            ("survived", "survived")):
        chosen = sorted((row for row in rows if row.status == status), key=lambda row: (row.file, row.number))
        if chosen:
            print(f"\n{heading}:")
        for row in chosen:
            print(f"  {row.name()}\n      {row.old.strip()!r} -> {row.new.strip()!r}")
        good = good and (status == "survived" or not chosen)
    print(f"\n{'folder':24} {'rows':>5} {'equivalent':>10} {'killed':>7} {'survived':>8} {'killed %':>9}")
    folders = {}
    for row in rows:
        folders.setdefault(os.path.dirname(row.file) or "(top)", []).append(row)
    for name, part in [*sorted(folders.items()), ("all", rows)]:
        killed, counted, share = percent(part)
        below = counted and share < (LIMIT_ALL if name == "all" else LIMIT_FOLDER)
        equivalent = sum(row.status == "equivalent" for row in part)
        print(f"{name:24} {len(part):5} {equivalent:10} {killed:7} {counted - killed:8} {share:8.1f}%{'  below the limit' if below else ''}")
        good = good and not below
    return good


def end_all(number, _frame):
    ending.set()
    with running_lock:
        for process in running:
            kill_group(process)
    print("interrupted: the same command goes on from here", file=sys.stderr)
    os._exit(128 + number)


def has_card():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return False
    return listed.returncode == 0


def option(name, default):
    return os.environ.get(name, "") or default


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        sys.exit(0 if sys.argv[1] == "--help" else 2)
    jobs, only, keep, kind = option("JOBS", str(os.cpu_count() or 1)), option("ONLY", ""), option("KEEP", ""), option("KIND", "")
    quick = option("QUICK", "0")
    if not jobs.isdigit() or int(jobs) < 1:
        stop(f"JOBS={jobs}: expected a number of workers from 1", 2)
    if not quick.isdigit():
        stop(f"QUICK={quick}: expected seconds", 2)
    if kind and kind not in TABLES:
        stop(f"KIND={kind}: expected host or cuda", 2)
    try:
        only = re.compile(only)
    except re.error as error:
        stop(f"ONLY={only}: no regular expression: {error}", 2)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_all)
    os.makedirs(PLACE, exist_ok=True)
    lock = open(os.path.join(PLACE, "lock"), "w", encoding="utf-8")  # held until the program ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stop("another make mutants runs in this tree", 2)
    files = tracked_files()
    tree, begun, all_rows = tree_hash(files), time.monotonic(), []
    for name in [kind] if kind else TABLES:
        rows = [row for row in read_table(name) if only.search(f"{row.file}: {row.what}")]
        for row in rows:
            if row.text() is None:
                row.status = "stale"
                print(f"stale: {row.name()}", flush=True)
        all_rows += rows
        fresh = [row for row in rows if not row.status]
        if name == "cuda" and fresh and not has_card():
            for row in fresh:
                row.status = "skipped"
            print(f"cuda: no card on this machine: {len(fresh)} rows skipped")
        elif fresh:
            Campaign(name, fresh, int(jobs), float(quick)).run(files, tree, keep)
    if option("RECORD", ""):
        write_killed()
    good = report(all_rows) and bool(all_rows)
    skipped = sum(row.status == "skipped" for row in all_rows)
    print(f"{len(all_rows)} rows, {skipped} skipped, {time.monotonic() - begun:.0f} s: {'within' if good else 'below'} the limits"
          f" ({LIMIT_ALL} % of all, {LIMIT_FOLDER} % of every folder)")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
