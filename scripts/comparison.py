"""What the scripts share: one-line errors, an end in order, matplotlib, types of flags, units, cards, programs that are measured,
CSV files with comments, and of the comparisons the report: its header, aligned text as it comes, Markdown and CSV files."""
import argparse
import contextlib
import csv
import errno
import importlib.metadata
import io
import itertools
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXIT_RUN, EXIT_INPUT = 1, 2  # as in llmc/base/error.h
FLASH3_PACKAGES = ["flash_attn_3", "xformers"]  # either brings FlashAttention-3's operators


# data/common.py has one, too: a folder of scripts is copied and used by itself, so it imports nothing of the other.
def printable(text):
    """Its words on one line; what a terminal would obey (control codes, direction marks, bytes that are no text) becomes '?'."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(text).split()))


def fail(message, code=EXIT_INPUT):
    """Prints one line to stderr and ends the program: 2 for bad input, 1 for a failure at run time."""
    sys.stdout.flush()
    print("error: " + printable(message), file=sys.stderr)
    sys.exit(code)


def pyplot():
    """matplotlib.pyplot, for files alone; ends the program where the library is missing."""
    try:
        import matplotlib
    except ImportError:
        fail("matplotlib is not installed; hint: pip install matplotlib", EXIT_RUN)
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save_picture(figure, path):
    """Writes a figure of matplotlib, whose kind goes by the path's end."""
    data = io.BytesIO()
    try:
        figure.savefig(data, format=os.path.splitext(path)[1][1:].lower() or None, dpi=120)
    except ValueError as error:  # no kind of picture ends so
        fail(f"{path}: {error}")
    file = Output(path, binary=True)
    try:
        file.write(data.getvalue())
        file.close()
    finally:
        file.discard()
    print(printable(path))


def end_with(main):
    """Runs main() and ends the program with what it returns. Ctrl-C and SIGTERM end it in order, too: what stands in `with` and
    `finally` is done, without a word, and the exit code is 128 and the signal's number."""

    def stop(number, _):
        for other in (signal.SIGINT, signal.SIGTERM):
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        code = main()
        sys.stdout.flush()
    except OSError as error:
        if error.filename or error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads what is left, or there is no room for it
        if error.errno == errno.EPIPE:
            sys.exit(128 + signal.SIGPIPE)
        fail(f"stdout: {error.strerror}", EXIT_RUN)
    sys.exit(code)


@contextlib.contextmanager
def uninterrupted():
    """A signal that comes in this block is heard at its end: what has begun is known by then to whoever must end it."""
    came = []
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in came[:1]:
        signal.raise_signal(number)


class Parser(argparse.ArgumentParser):
    """argparse whose complaint is one line."""

    def error(self, message):
        fail(f"{message}; hint: {os.path.basename(self.prog)} --help")


def integers(least, most, multiple=1):
    """The type of a flag that takes '1024,2048' or '1024:32768' (doubling); each in [least, most], of multiple."""

    def parse(text):
        try:
            if ":" in text:
                first, last = (int(part) for part in text.split(":"))
                values = [first << i for i in range(32) if 0 < first << i <= last]
            else:
                values = [int(part) for part in text.split(",")]
        except ValueError:
            values = []
        if not values or any(not least <= v <= most or v % multiple for v in values):
            raise argparse.ArgumentTypeError(
                f"expected integers like 1024,2048 or 1024:32768, each {least} to {most}"
                f"{f' and a multiple of {multiple}' if multiple > 1 else ''}, found {text!r}")
        return values

    return parse


def integer(least, most):
    """The type of a flag that takes one integer in [least, most]."""

    def parse(text):
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected an integer from {least} to {most}, found {text!r}")
        return int(text)

    return parse


def number(least, most, expected="a number from {:g} to {:g}"):
    """The type of a flag that takes one number in [least, most]."""

    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected {expected.format(least, most)}, found {text!r}")
        return value

    return parse


def one_of(names):
    """The type of a flag that takes one of the names."""

    def parse(text):
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return parse


def listed(kind):
    """The type of a flag that takes several values of a type, between commas."""
    return lambda text: [kind(word) for word in text.split(",")]


def duration(least, most):
    """The type of a flag that takes a time in [least, most]."""
    return number(least, most, "{:g} to {:g} seconds")


def gib(text):
    """'43.1 MiB', as the trainer prints it, as a number of GiB; NaN where it measured nothing."""
    if text == "n/a":
        return math.nan
    value, unit = text.split()
    return float(value) * 1024.0 ** (["B", "KiB", "MiB", "GiB", "TiB"].index(unit) - 3)


def import_torch():
    """PyTorch; without it, ends the program with one line."""
    try:
        import torch
    except ImportError as error:
        fail(f"PyTorch cannot be imported: {error}; hint: pip install torch")
    return torch


def visible_card(number):
    """CUDA_VISIBLE_DEVICES of a program that is to see only the card of that number, of those that this one sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[number] if visible and number < len(visible.split(",")) else str(number)


def choose_card(number):
    """The card of this program and of those it starts; None: as it is. Before PyTorch looks for one."""
    if number is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_card(number)


def torch_on_card(number=None):
    """PyTorch with a CUDA device, that of choose_card(number); without one, ends the program with one line."""
    choose_card(number)
    torch = import_torch()
    if not torch.cuda.is_available():
        fail("PyTorch sees no CUDA device; hint: nvidia-smi shows the driver and the devices")
    return torch


def need_card(hint):
    """Ends the program with one line where there is no NVIDIA GPU."""
    if not first_line(["nvidia-smi", "-L"]):
        fail(f"no NVIDIA GPU on this machine; hint: {hint}")


def built_trainer():
    """./train_gpt2cu, or ./train_gpt2 where only that is built."""
    cuda, cpu = "./train_gpt2cu", "./train_gpt2"
    return cpu if os.access(cpu, os.X_OK) and not os.access(cuda, os.X_OK) else cuda


def need_program(path, target="train_gpt2cu"):
    """Ends the program with one line where a trainer is not built."""
    if not os.access(path, os.X_OK):
        fail(f"{path} is missing; hint: make {target}")


def run_program(command, limit_s, variables=None):
    """(what came of a program that ended well, ""), or (None, why it did not: its last word). variables: beside this process's own."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=limit_s,
                              env={**os.environ, **(variables or {})}), ""
    except subprocess.TimeoutExpired:
        return None, f"stopped after {limit_s} s"
    except subprocess.CalledProcessError as error:
        return None, (error.stderr.strip().splitlines() or [f"ended with status {error.returncode}"])[-1]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def torchrun_variables(rank, n_ranks, port):
    """What torchrun tells a rank of this host."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks), "LOCAL_WORLD_SIZE": str(n_ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def split_csv(text):
    """(csv.DictReader of the rows, comment lines) of a CSV file's text; lines that begin with # are comments."""
    lines = text.splitlines()
    return csv.DictReader(line for line in lines if not line.startswith("#")), [line for line in lines if line.startswith("#")]


def whole_rows(reader):
    """Those of split_csv that have a cell for each column: of a run that was ended the last one is torn."""
    return [row for row in reader if None not in row and None not in row.values()]


def first_line(command):
    """The first line that a command prints, or '' where it fails."""
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.partition("\n")[0].strip()


def commit(built="build"):
    """That make noted in the folder of what it built; without a note, the tree's."""
    described = ["git", "describe", "--always", "--dirty=-modified", "--exclude=*"]
    return first_line(["cat", os.path.join(built, "commit")]) or first_line(described) or "unknown"


def commit_of(program):
    """The commit that a trainer was built from."""
    return first_line([program, "--version"]).rpartition(" ")[2] or "unknown"


def own_command():
    """The command that runs, from the repository's root, as a shell takes it."""
    return shlex.join([os.path.relpath(sys.argv[0], ROOT)] + sys.argv[1:])


def provenance(measured, card="", identities=("0",), more=()):
    """[(name, text)]: everything that a reader needs to repeat the run. measured: commit() of the binary; card: its name where
    nvidia-smi is missing; identities: nvidia-smi's -i of each card; more: [(name, text)] of what else took part."""
    query = ["nvidia-smi", "--query-gpu=name,uuid,power.limit,driver_version", "--format=csv,noheader", "-i"]
    return [
        ("card", "; ".join(first_line([*query, identity]) or f"{card} {identity}" for identity in identities)),
        ("commit", measured),
        *more,
        ("date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
        ("command", own_command()),
    ]


def version_of(packages):
    """'name version' of the first of them that is installed, or ''."""
    for name in packages:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def environment(torch, measured, cards=1):
    """provenance() of a run beside PyTorch, on the first `cards` that it sees."""
    cudnn, identities = str(torch.backends.cudnn.version()), [str(getattr(torch.cuda.get_device_properties(card), "uuid", "")) for card in range(cards)]
    return provenance(measured, torch.cuda.get_device_name(), [f"GPU-{identity}" if identity else str(card) for card, identity in enumerate(identities)], [
        ("torch", f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}"),
        ("triton", version_of(["triton"]) or "none"),
        ("FA3", version_of(FLASH3_PACKAGES) or "none")])


BEGINNINGS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml", ".html": b"<!DOCTYPE html>", ".htm": b"<!DOCTYPE html>"}


def check_output(path):
    """Ends the program with one line where no file can be written, or what is there is not of the kind that its name says: somebody's
    own, or a run's log."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        fail(f"{path}: cannot be written: is a folder")
    if not os.path.isdir(folder):
        fail(f"{path}: cannot be written: no such folder")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        fail(f"{path}: cannot be written: permission denied")
    begins = BEGINNINGS.get(os.path.splitext(path)[1].lower())
    if begins and os.path.isfile(path):
        with open(path, "rb") as file:
            found = file.read(len(begins))
        if found and found != begins:
            fail(f"{path}: is there, and not what its name says; hint: another name, nothing is lost so")


def _open(path, mode, binary):
    return open(path, mode + "b") if binary else open(path, mode, encoding="utf-8", newline="")


def beside(path, binary=False):
    """A new file, PATH.part, or PATH.part1 and so on where somebody has that: it takes the name PATH when it is whole."""
    for n in itertools.count():
        with contextlib.suppress(FileExistsError):
            return _open(f"{path}.part{n or ''}", "x", binary)


class Output:
    """A file that is begun beside PATH with the first that is written, and takes its name when it is closed: until then an old file of
    that name stands. Path None: nothing is kept. Ends the program where no file can be written there."""

    def __init__(self, path, binary=False):
        if path:
            check_output(path)
        self.is_device = path and os.path.exists(path) and not os.path.isfile(path)
        self.path, self.binary, self.file = path, binary, None
        self.target = path and os.path.realpath(path)  # a link stays one

    @contextlib.contextmanager
    def _writing(self):
        try:
            yield
        except OSError as error:
            self.discard()
            fail(f"{self.path}: cannot be written: {error.strerror or error}", EXIT_RUN)

    def write(self, text):
        if not self.path:
            return
        with self._writing():
            if not self.file:
                self.file = _open(self.path, "w", self.binary) if self.is_device else beside(self.target, self.binary)
            self.file.write(text)
            self.file.flush()

    def close(self):
        if not self.file:
            return
        with self._writing():
            self.file.close()
            if not self.is_device:
                os.replace(self.file.name, self.target)
            self.file = None

    def discard(self):
        """Removes what was begun and did not take its name."""
        file, self.file = self.file, None
        if file and not self.is_device:
            with contextlib.suppress(OSError):
                os.remove(file.name)
        if file:
            with contextlib.suppress(OSError):
                file.close()  # what it could not write is known, and it tries again


class Report:
    """Tables: printed row by row, so that a run that dies leaves what it had; kept for Markdown; and CSV records. Files: Output."""

    def __init__(self, csv_path, markdown_path):
        self.csv, self.markdown = Output(csv_path), Output(markdown_path)
        self.writer = None
        self.widths = []
        self.notes = []  # for the Markdown, where a line between two rows would end the table

    def _write_markdown(self, line):
        self.markdown.write(f"{line}\n")

    def header(self, items):
        """items: [(name, text)]; comment lines in the CSV."""
        for name, text in items:
            print(f"{name:8s} {text}", flush=True)
            self._write_markdown(f"- {name}: {text}")
            self.csv.write(f"# {name}: {text}\n")

    def note(self, text):
        """A line of its own, now on the screen, in the Markdown after the table."""
        print(text, flush=True)
        self.notes.append(text.strip())

    def _end_table(self):
        for text in self.notes:
            self._write_markdown(f"\n{text}")
        self.notes = []

    def table(self, title, headings):
        """Begins a table. A heading is as wide as its column: pad it for wider cells."""
        self._end_table()
        self.widths = [len(heading) for heading in headings]
        print(f"\n{title}\n" + "  ".join(headings), flush=True)
        self._write_markdown(f"\n{title}\n\n| " + " | ".join(h.strip() for h in headings) + " |")
        self._write_markdown("|" + "---|" * len(headings))

    def row(self, cells):
        """One row of the table: texts, set flush right."""
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, self.widths)), flush=True)
        self._write_markdown("| " + " | ".join(cells) + " |")

    def record(self, **values):
        """One line of the CSV; every record of a report has the same names."""
        if not self.writer:
            self.writer = csv.DictWriter(self.csv, list(values))
            self.writer.writeheader()
        self.writer.writerow(values)

    def close(self):
        self._end_table()
        self.csv.close()
        self.markdown.close()
