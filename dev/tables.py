#!/usr/bin/env python3
"""The tables of the ladder: runs the lab, writes CSV, Markdown and a plot for each under dev/results/CARD/.

  make tables                       all of them, on the card at hand
  dev/tables.py [NAME...] [--quick] some of them; dev/tables.py --list names them

Needs dev/lab (make dev); plots need matplotlib. Ends with the number of failed commands; exit code 1 if any, 2 on bad usage.
"""
import csv
import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field

LAB = "dev/lab"
GPT2 = ["--head-size", "64", "--causal", "1"]
LADDER = "standard,naive_fused,flash1,flash2,online,scalar_online,sm80,hopper,cpu"


@dataclass
class Table:
    """One table: lab commands, and values over T by variant."""

    name: str
    title: str
    published: str
    commands: list
    values: dict = field(default_factory=dict)  # column of the CSV: its heading
    kind: str = "time"


def lab(op, variants, lengths, *more):
    return [op, "--variant", variants, "-T", lengths, *more]


TABLES = [
    Table(
        "full_stack",
        "Full stack: one head of size 16, forward, ms",
        "pure Python with nodes 0.209 to 1.551, pure Python 0.018 to 0.100, C 0.001 to 0.063, a framework on a GPU 0.054, fused 0.025 "
        "(N = 8 to 64); dev/attention/textbook.py has the Python rows",
        [
            lab("attention_forward", "textbook,scalar_online_fp32,flash2_fp32,standard_fp32,cpu,generic_fp32", "8:64", "--time",
                "--head-size", "16", "--channels", "16", "--batch-tokens", "1", "--causal", "1"),
            lab("attention_backward", "autograd_graph", "8:64", "--time", "--head-size", "16", "--channels", "16", "--batch-tokens", "1",
                "--causal", "1"),
        ],
        {"ms": "ms"},
    ),
    Table(
        "speed_memory",
        "Speed and intermediate memory, one head of size 64, forward",
        "N = 1024, 2048, 4096: standard 0.081, 0.258, 1.668 ms with 8, 32, 128 MB; fused 0.039, 0.158, 0.462 ms with 0.25, 0.5, 1 MB",
        [lab("attention_forward", "standard,flash2,sm80,hopper", "1024:4096", "--time", *GPT2, "--channels", "64", "--batch-tokens", "1")],
        {"ms": "ms", "scratch_mbytes": "MB beside the tensors"},
    ),
    Table(
        "lite_online",
        "Lite against Online: largest error, fp32 and bf16",
        "N = 64 to 1024: Lite 0.002, 0.761, 1.292, 2.287, 3.491; Online at most 0.003",
        [lab("attention_forward", "lite,lite_fp32,online,online_fp32", "64:1024", "--check", "--fill", "normal", "--head-size", "64",
             "--causal", "0")],
        {"largest": "largest error"},
        "check",
    ),
    Table(
        "intensity",
        "FLOP and bytes of device memory by each variant's formula, B*T = 65536, 24 heads of 64, forward",
        "FLOP per byte at N = 1024, 4096: standard 15.4, 16.1; fused 261, 1044",
        [lab("attention_forward", LADDER, "1024,4096", "--time", *GPT2)],
        {"intensity": "FLOP per byte", "mbytes_variant": "MB", "gflop_variant": "GFLOP"},
    ),
    Table(
        "backward_medium",
        "Backward at GPT-2 medium's shape: 64 x 1024 tokens, 16 heads of 64",
        "forward and backward: standard 66.6 GFLOP, 40.3 GB, 41.7 ms; recompute 75.2 GFLOP, 4.4 GB, 7.3 ms",
        [lab("attention_backward", "standard,flash1,flash2,sm80,hopper_split,hopper", "1024", "--time", *GPT2, "--channels", "1024")],
        {"ms": "ms", "gflop_variant": "GFLOP", "mbytes_variant": "MB", "tflops": "TFLOP/s"},
    ),
    Table(
        "memory",
        "Memory beside the tensors against sequence length: one sequence, 16 heads of 64, forward, MB",
        "N = 1024 to 8192: standard 1.2, 4.8, 19.2, 76.8 GB; flash 0.4, 0.8, 1.6, 3.2 GB (whole models)",
        [lab("attention_forward", "standard,standard_fp32,flash1,flash2,hopper", "1024:8192", "--time", *GPT2, "--channels", "1024",
             "--batch-tokens", "1")],
        {"scratch_mbytes": "MB", "ms": "ms"},
    ),
    Table(
        "forward_lengths",
        "Forward against T, B*T = 65536, 24 heads of 64, causal, TFLOP/s",
        "none",
        [lab("attention_forward", LADDER, "128:131072", "--time", *GPT2)],
        {"tflops": "TFLOP/s", "ms": "ms"},
    ),
    Table(
        "backward_lengths",
        "Backward against T, B*T = 65536, 24 heads of 64, causal, TFLOP/s",
        "none",
        [lab("attention_backward", "standard,flash1,flash2,sm80,hopper_split,hopper,cpu", "128:131072", "--time", *GPT2)],
        {"tflops": "TFLOP/s", "ms": "ms"},
    ),
    Table(
        "sparse",
        "Block-sparse attention (window 128, 8 global tokens, a tenth at random): density and time, forward",
        "none",
        [lab("attention_forward", "flash2", "1024:16384", "--time", *GPT2, "--sparse"),
         lab("attention_forward", "flash2", "1024:16384", "--time", *GPT2)],
        {"ms": "ms", "density": "density"},
    ),
    Table(
        "dropout",
        "Dropout inside the kernel against none, forward and backward",
        "none",
        [lab(op, "flash2", "1024,4096", "--time", *GPT2, *more)
         for op in ("attention_forward", "attention_backward") for more in ((), ("--dropout",))],
        {"ms": "ms"},
    ),
    Table(
        "decode",
        "One query against a cache, 24 heads of 64",
        "none",
        [lab("attention_forward", "flash_decoding,flash2,scalar_online", "1024:65536", "--time", "--head-size", "64", "--causal", "0",
             "--queries", "1")],
        {"ms": "ms", "gbytes_per_s": "GB/s"},
    ),
]


@functools.cache
def variants():
    """Names of all rows that this lab has: one built without nvcc has the CPU's alone."""
    listed = subprocess.run([LAB, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith("  ")}


def run_lab(command, folder, quick):
    """Rows of one lab command as dicts, its comment lines, and whether it passed."""
    path = os.path.join(folder, ".lab.csv")
    at = command.index("--variant") + 1
    names = [name for name in command[at].split(",") if name in variants()]
    if not names:
        return [], [], True
    command = [*command[:at], ",".join(names), *command[at + 1 :]]
    words = [LAB, *command, "--csv", path, *(["--quick", "--seconds", "0.05"] if quick else [])]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0 or not os.path.exists(path):
        print(f"FAIL {' '.join(words)}: exit code {done.returncode}: {done.stdout.strip().splitlines()[-1:]}")
        return [], [], False
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    os.remove(path)
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return rows, [line for line in lines if line.startswith("#")], True


def label(row):
    """Variant, with what sets rows of one table apart."""
    forms = [word for word, on in (("sparse", row["sparse"]), ("dropout", row["dropout"])) if on == "1"]
    backward = ["backward"] if row["op"] == "attention_backward" else []
    return " ".join([row["variant"], *backward, *forms])


def number(row, value):
    """The value of a row, or None."""
    if value == "intensity":
        return float(row["gflop_variant"]) * 1e3 / float(row["mbytes_variant"])
    return float(row[value]) if row[value] else None


def pivot(rows, value):
    """Lengths, and for each label its values by length."""
    lengths, series = sorted({int(row["Tk"]) for row in rows}), {}
    for row in rows:
        series.setdefault(label(row), {})[int(row["Tk"])] = number(row, value)
    return lengths, series


def markdown(table, rows, comments):
    lines = [f"# {table.title}", "", *(f"    {comment}" for comment in comments), "", f"Published: {table.published}.", ""]
    for value, heading in table.values.items():
        lengths, series = pivot(rows, value)
        lines += [f"| {heading} at T = | " + " | ".join(map(str, lengths)) + " |", "|---" * (len(lengths) + 1) + "|"]
        for name, values in series.items():
            cells = [f"{values[T]:.4g}" if values.get(T) is not None else "" for T in lengths]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def plot(table, rows, path):
    """The first value over T, both on logarithmic axes; without matplotlib there is no plot."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print(f"skip {path}: matplotlib is not installed")
        return
    value, heading = next(iter(table.values.items()))
    lengths, series = pivot(rows, value)
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name, values in series.items():
        points = [(T, values[T]) for T in lengths if values.get(T)]
        if points:
            axes.plot(*zip(*points), marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("T")
    axes.set_ylabel(heading)
    axes.set_title(table.title, fontsize=9)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)


def card_name(comments):
    """A folder's name from the comment line of the card, or of the CPU."""
    for kind in ("# gpu ", "# cpu "):
        for line in comments:
            if line.startswith(kind):
                return re.sub(r"[^a-z0-9]+", "-", line[len(kind) :].split(",")[0].lower()).strip("-")
    return "unknown"


def make(table, quick):
    """Writes the table's three files; the number of commands that failed."""
    rows, comments, failed = [], [], 0
    for command in table.commands:
        more, header, ok = run_lab(command, "dev/results", quick)
        failed += not ok
        rows += [row for row in more if row["kind"] == table.kind]
        comments += [line for line in header if line not in comments]
    if not rows:
        print(f"skip {table.name}: none of its rows runs on this machine")
        return failed
    folder = os.path.join("dev/results", card_name(comments))
    os.makedirs(folder, exist_ok=True)
    base = os.path.join(folder, table.name)
    with open(base + ".csv", "w", encoding="utf-8", newline="") as file:
        file.write("\n".join(comments) + "\n")
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with open(base + ".md", "w", encoding="utf-8") as file:
        file.write(markdown(table, rows, comments))
    plot(table, rows, base + ".png")
    print(f"{base}.md: {len(rows)} rows")
    return failed


def main():
    words = sys.argv[1:]
    names, quick = [word for word in words if not word.startswith("-")], "--quick" in words
    known = [table.name for table in TABLES]
    if "--list" in words:
        print("\n".join(f"{table.name:18} {table.title}" for table in TABLES))
        return 0
    wrong = [n for n in names if n not in known] + [w for w in words if w.startswith("-") and w != "--quick"]
    if wrong or not os.access(LAB, os.X_OK):
        reason = f"unknown: {' '.join(wrong)}; known: {' '.join(known)} --quick --list" if wrong else f"{LAB} is not built; hint: make dev"
        print(f"error: tables.py: {reason}", file=sys.stderr)
        return 2
    try:
        os.makedirs("dev/results", exist_ok=True)
    except OSError as error:
        print(f"error: tables.py: dev/results: {error.strerror}", file=sys.stderr)
        return 2
    failed = sum(make(table, quick) for table in TABLES if not names or table.name in names)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
