#!/usr/bin/env python3
"""Speed and memory of a training step against the context length T, one sequence a step: a table and a plot.

    scripts/context.py                                             # every length and mode that fits and takes under a minute
    scripts/context.py --seq 1024:65536 --modes flash,linear --csv context.csv --png context.png
    scripts/context.py --seq 131072 --modes gelu -- --train my_train_000001.bin --steps 10

A run lasts 6.5 s or more where --steps does not say otherwise. Run from the repository root after `make train_gpt2cu`. Random tokens unless the flags say --train, d12 unless they say
--model. A mode is how the T x T part and the activations are treated:
    flash      --recompute none         gelu       --recompute gelu
    linear     --recompute linear       block      --recompute block (attention, too)
    standard   --attention standard (the T x T matrix)
The losses of the first and the last step show whether modes of one length train alike: same tokens, same weights. Rows go
to the CSV (a row of the same T and mode is replaced), so that long lengths can be added later. A length whose run would
take longer than the limit, four times the time of half the length, is left out and said; one that does not fit keeps its
planned memory. A card is needed, but with -- --device cpu. --inference also times the forward pass alone (validation) and
the last tokens of a sample that fills the context (one sequence, one token at a time, a cache of keys and values: the same
in all modes). Without matplotlib there is no plot. Exit code: 0, 1 where a run failed, 2 on bad usage, of the trainer's
flags, too.
"""
import argparse
import csv
import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import random_shard
from comparison import (EXIT_INPUT, EXIT_RUN, Output, Parser, built_trainer, check_output, commit_of, duration, end_with, fail, gib, integers,
                        listed, need_card, need_program, one_of, printable, provenance, pyplot, save_picture, split_csv, uninterrupted,
                        whole_rows)
from run_log import read_log

PROGRAM = built_trainer()
MODES = {
    "flash": ["--recompute", "none"],
    "gelu": ["--recompute", "gelu"],
    "linear": ["--recompute", "linear"],
    "block": ["--recompute", "block"],
    "standard": ["--attention", "standard"],
}
FIELDS = ["T", "mode", "ms", "tokens_per_second", "planned_gib", "measured_gib", "first_loss", "last_loss",
          "forward_tokens_per_second", "sample_tokens_per_second"]
SUSTAINED_S, WARM_UP_S = 6.5, 1.0  # of a run; at load before the steps that count
SAMPLE_TOKENS = 128  # the last of a sample, those that are timed


def n_steps(seq, flags=()):
    """--steps, or enough to learn how long one takes: 2^18 tokens, at most 100 steps, at least 3, or 2 where one takes many seconds."""
    given = dict(zip(flags[0::2], flags[1::2])).get("--steps", "")
    if given.isdigit():
        return int(given)
    return max(3 if seq < 1 << 18 else 2, min(100, (1 << 18) // seq))


def n_sustained(row, steps):
    """Steps of a second run, which last SUSTAINED_S, where those of the first did not; else 0."""
    return math.ceil(1e3 * SUSTAINED_S / row["ms"]) + 1 if row["ms"] != "" and row["ms"] * steps < 1e3 * SUSTAINED_S else 0


def settled(steps):
    """[ms] of the steps but the first, which also chooses plans, and those of a second at load; at least the last half."""
    passed, times = 0.0, [step["ms"] for step in steps]
    for first in range(1, max(2, len(times) // 2)):
        if passed >= 1e3 * WARM_UP_S:
            break
        passed += times[first]
    return times[first:]


def inference_flags(seq, shard):
    """Validation of about 2^17 tokens, then a sample that fills the context."""
    return ["--val", shard, "--eval-batches", str(max(4, (1 << 17) // seq)), "--sample-tokens", str(seq - 1)]


class Stream:
    """What a program prints, and when: it flushes its lines, and every token of a sample."""

    def __init__(self, command):
        self.text, self.times = b"", []  # times: (length of the text so far, seconds)
        with tempfile.TemporaryFile() as errors:
            process = None
            try:
                with uninterrupted():
                    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
                while piece := os.read(process.stdout.fileno(), 1 << 16):
                    self.text += piece
                    self.times.append((len(self.text), time.perf_counter()))
                self.status = process.wait()
            finally:
                if process:
                    process.kill()  # where this program is stopped: the other must not write on
                    process.wait()
            errors.seek(0)
            self.errors = errors.read().decode(errors="replace")

    def when(self, offset):
        """Seconds at which the character at the offset had come."""
        return next(seconds for length, seconds in self.times if length > offset)


def inference(stream, seq, flags):
    """Tokens/s of the forward pass alone, and of drawing with a full context: between the stream's marks."""
    rates, value = {}, dict(zip(flags[0::2], flags[1::2]))
    validation = re.search(rb"\n([^\n]*val loss)[^\n]*\n", stream.text)
    if validation:
        seconds = stream.when(validation.end(1)) - stream.when(validation.start())
        rates["forward_tokens_per_second"] = round(seq * int(value["--eval-batches"]) / seconds)
    sample = re.search(rb"--- sample[^\n]*\n(.*)\n---\n", stream.text, re.DOTALL)
    if sample:
        pieces = [seconds for length, seconds in stream.times if sample.start(1) < length <= sample.end(1)]
        tokens_a_piece = int(value["--sample-tokens"]) / len(pieces)  # 1, but where two came together
        last = pieces[-SAMPLE_TOKENS - 1:]
        rates["sample_tokens_per_second"] = round((len(last) - 1) * tokens_a_piece / (last[-1] - last[0]))
    return rates


def digits(loss):
    """A loss of the log; nan where it says null."""
    return "nan" if loss is None else f"{loss:.6f}"


def run_sustained(seq, mode, shard, folder, flags, with_inference=False):
    """run(), once more with as many steps as last long enough, where the flags do not say how many."""
    row = run(seq, mode, shard, folder, flags, with_inference)
    more = n_sustained(row, n_steps(seq)) if row and "--steps" not in flags[0::2] else 0
    if more:
        shutil.rmtree(folder, ignore_errors=True)
        again = run(seq, mode, shard, folder, flags, False, more)
        row = again and {**row, **{name: value for name, value in again.items() if value != ""}}
    return row


def run(seq, mode, shard, folder, flags, with_inference=False, steps=None):
    """One run; returns its row, or None with the program's words on stderr where it fails for another reason than memory. Bad
    input ends the script: what a run refuses, the others would, too."""
    command = ["--model", "d12", "--train", shard, "--batch", "1", "--seq", str(seq), "--tokens-per-step", str(seq),
               "--steps", str(steps or n_steps(seq)), "--eval-every", "0", "--optimizer", "adamw"]
    more = inference_flags(seq, shard) if with_inference else ["--sample-tokens", "0"]
    given = set(flags[0::2])  # a flag given twice is refused: the user's stands
    pairs = list(zip((command + more)[0::2], (command + more)[1::2]))
    words = [word for pair in pairs if pair[0] not in given for word in pair] + MODES[mode] + flags
    done = Stream([PROGRAM] + words + ["--out", folder, "--model-only"])
    row = dict.fromkeys(FIELDS, "")
    row.update(T=seq, mode=mode)
    needs = re.search(r"needs ([0-9.]+) GiB", done.errors)
    if needs:
        row["planned_gib"] = float(needs[1])
        return row
    said = f"T = {seq}, {mode}: {done.errors.strip().removeprefix('error: ')}"
    if done.status == EXIT_INPUT:
        fail(said)
    if done.status:
        print(f"error: {printable(said)}", file=sys.stderr)
        return None
    steps = read_log(folder).steps
    later = sorted(settled(steps))
    ms = later[len(later) // 2]
    memory = re.search(r"planned (.*), measured (.*)", done.text.decode(errors="replace"))
    row.update(ms=round(ms, 3), tokens_per_second=round(1e3 * seq / ms), planned_gib=round(gib(memory[1]), 2),
               measured_gib=round(gib(memory[2]), 2), first_loss=digits(steps[0]["loss"]),
               last_loss=digits(steps[-1]["loss"]))
    if with_inference:
        row.update(inference(done, seq, words))
    return row


def read_rows(path):
    """({(T, mode): row}, [comment lines]) of the CSV; none where there is no such file."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader, comments = split_csv(file.read())
        if reader.fieldnames != FIELDS:
            fail(f"--csv {path}: expected the columns {','.join(FIELDS)}, found {','.join(reader.fieldnames or [])}")
        return {(int(row["T"]), row["mode"]): row for row in whole_rows(reader) if row["mode"] in MODES}, comments
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        fail(f"--csv {path}: cannot be read: {error}")


def write_rows(path, rows, comments):
    file = Output(path)
    for line in comments:
        file.write(f"{line}\n")
    writer = csv.DictWriter(file, FIELDS)
    writer.writeheader()
    for key in sorted(rows, key=lambda k: (list(MODES).index(k[1]), k[0])):
        writer.writerow(rows[key])
    file.close()


def width_of(name):
    """Of a column on the screen."""
    return max(10, len(name))


def measure(args):
    """(rows of the CSV with the new ones, whether every run that was made succeeded)"""
    (rows, comments), ok, left_out = read_rows(args.csv), True, {}  # left_out: (seq, mode): the ms that a step would take
    timed = [] if "--steps" in args.flags else [("timed", f"{SUSTAINED_S - WARM_UP_S:g} s a row or more, after {WARM_UP_S:g} s at load")]
    comments += [f"# {name}: {text or 'none'}" for name, text in provenance(commit_of(PROGRAM), more=timed)]  # of every run that added rows
    with tempfile.TemporaryDirectory() as folder:
        shard = os.path.join(folder, "context_train_000001.bin")
        if "--train" not in args.flags:
            random_shard.write(shard)
        print(*(f"{name:>{width_of(name)}}" for name in FIELDS), flush=True)
        for mode in args.modes:
            for seq in args.seq:
                before = rows.get((seq // 2, mode), {}).get("ms") or left_out.get((seq // 2, mode), 0)
                expected = 4e-3 * float(before) * n_steps(seq, args.flags)
                if expected > args.limit:
                    left_out[seq, mode] = 4 * float(before)
                    print(f"T = {seq}, {mode}: left out, about {expected:.0f} s; hint: --limit {expected:.0f}", file=sys.stderr)
                    continue
                row = run_sustained(seq, mode, shard, os.path.join(folder, f"{mode}_{seq}"), args.flags, args.inference)
                shutil.rmtree(os.path.join(folder, f"{mode}_{seq}"), ignore_errors=True)
                ok = ok and row is not None
                if row:
                    rows[seq, mode] = row
                    print(*(f"{row[name]:>{width_of(name)}}" for name in FIELDS), flush=True)
                    write_rows(args.csv, rows, comments)
    return rows, ok


def plot(rows, path):
    if all(row["ms"] == "" for row in rows.values()):
        fail("no length was measured: nothing to draw", EXIT_RUN)
    plt = pyplot()
    figure, (speed, memory) = plt.subplots(1, 2, figsize=(10, 4))
    for index, mode in enumerate(MODES):
        points = sorted((t, row) for (t, m), row in rows.items() if m == mode and row["ms"] != "")
        if not points:
            continue
        lengths = [t for t, _ in points]
        style = dict(marker="o", markersize=4, color=f"C{index}", label=mode)
        speed.plot(lengths, [float(row["tokens_per_second"]) for _, row in points], **style)
        memory.plot(lengths, [float(row["measured_gib"]) for _, row in points], **style)
    for axes, label in ((speed, "tokens/s"), (memory, "device memory, GiB")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("context T (tokens)")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    save_picture(figure, path)


def parse_arguments(argv):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq", type=integers(1, 1 << 21), default=[1 << i for i in range(10, 21)], metavar="LIST",
                        help="lengths in rising order; default 1024:1048576")
    parser.add_argument("--modes", type=listed(one_of(MODES)), default=list(MODES), metavar="LIST", help=f"of {', '.join(MODES)}; default: all")
    parser.add_argument("--inference", action="store_true", help="time the forward pass alone and sampling, too")
    parser.add_argument("--limit", type=duration(1, 86400), default=60, metavar="S", help="seconds that one run may take")
    parser.add_argument("--csv", default="scripts/context.csv", metavar="FILE")
    parser.add_argument("--png", default="scripts/context.png", metavar="FILE")
    parser.add_argument("--plot-only", action="store_true", help="draw the CSV as it is")
    parser.add_argument("flags", nargs="*", metavar="-- FLAGS", help="go to every run of the trainer: pairs of name and value")
    args = parser.parse_args(argv)
    if len(args.flags) % 2 or any(not name.startswith("-") for name in args.flags[0::2]):
        parser.error(f"-- FLAGS: expected pairs of name and value, found {' '.join(args.flags)}")
    return args


def check_program(flags):
    """Ends the script where the trainer is missing, or the card that it would measure."""
    need_program(PROGRAM)
    if ("--device", "cpu") not in zip(flags[0::2], flags[1::2]):
        need_card("-- --device cpu measures the CPU")


def main():
    args, ok = parse_arguments(sys.argv[1:]), True
    for path in (args.csv, args.png):  # now, not after hours
        check_output(path)
    with_plot = importlib.util.find_spec("matplotlib") is not None
    if args.plot_only:
        rows, _ = read_rows(args.csv)
        if not with_plot:
            fail("matplotlib is not installed; hint: pip install matplotlib")
    else:
        check_program(args.flags)
        if not with_plot:
            print("note: no plot, matplotlib is not installed; hint: pip install matplotlib, then --plot-only", file=sys.stderr)
        rows, ok = measure(args)
    if with_plot:
        plot(rows, args.png)
    return 0 if ok else EXIT_RUN


if __name__ == "__main__":
    end_with(main)
