#!/usr/bin/env python3
"""Compares training steps of ./train_gpt2cu and of GPT-2 in PyTorch (scripts/torch_gpt2.py: torch.compile, fused AdamW,
bf16 autocast) on the same card, model and batch: tokens/s, peak memory, ratios.

    make train_gpt2cu && scripts/compare_train.py                     # all configurations, about 15 minutes on an H200
    scripts/compare_train.py --only d12:64x1024,d24:32x1024 --csv train.csv
    scripts/compare_train.py --only d12:1x131072 --flags='--recompute block' --ways flash3/default
    scripts/compare_train.py --only d12:64x1024 --dropout 0.1 --ways cudnn/default,flash/default

PyTorch runs in several ways, an attention kernel and a mode of torch.compile; each has one turn, and the fastest one takes
turns with ours until each has --turns of --seconds, under sustained load, after 1 s of it that is not timed. A way that is
not the fastest any more is ended, so that its memory is free. Only one program uses the card at a time, compiling
included; the next way imports PyTorch meanwhile. The CSV has a line for every turn; scripts/combine.py makes one table
from those of several cards. With --dropout both programs drop in the same places, the configuration's name says it, and
flash, FlashAttention-2, takes the place of flash3, which has no dropout. Ways of a configuration:
"""
import argparse
import collections
import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import random_shard
from cases import flop_of_token, name_of, named_case, tokens_of
from combine import combine_train
from comparison import (EXIT_RUN, ROOT, Parser, Report, commit_of, duration, end_with, environment, gib, integer, listed, need_program, number,
                        run_program, torch_on_card, uninterrupted)
from run_log import read_log

# Ways of PyTorch: (attention, mode of torch.compile); attention "best": that of the fastest way so far. Both attentions in
# the default mode everywhere, and with CUDA graphs where the host's launches count, since an operator of its own costs the
# host more; then the other modes with the better attention. 4 x 16384 and 1 x 65536 have the matrix products of 64 x 1024,
# and 1 x 131072 twice as many rows. Without CUDA graphs at 350M and 1.5B: their pool would keep what ours needs in its turn.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
DEFAULT = [("cudnn", "default"), ("flash3", "default")]
GRAPH, TUNED = ("best", "reduce-overhead"), ("best", "max-autotune")

# To add a configuration: a row, and what it must reach in combine.py. flags: of ours; at 4 x 16384 --recompute gelu takes
# 18.2 GiB and 207.8 ms where none takes 22.3 and 207.2, and linear 7.9 and 218.
Configuration = collections.namedtuple("Configuration", "model B T ways flags tokens dropout", defaults=("", 0, 0.0))  # tokens: a Case's
CONFIGURATIONS = [
    Configuration("d12", 64, 1024, DEFAULT + [GRAPH, TUNED]),
    Configuration("d12", 4, 1024, DEFAULT + [("cudnn", MODES[1]), ("flash3", MODES[1]), TUNED]),
    Configuration("d24", 32, 1024, DEFAULT + [("best", MODES[3])]),
    Configuration("d48", 16, 1024, DEFAULT + [("best", MODES[3])]),
    Configuration("d12", 4, 16384, DEFAULT + [TUNED], "--recompute gelu"),
    Configuration("d12", 1, 65536, DEFAULT + [TUNED], "--recompute gelu"),
    Configuration("d12", 1, 131072, DEFAULT, "--recompute gelu"),
]
COLUMNS = ("configuration", "program", "attention", "mode", "flags", "ms", "tok_s", "memory_gib", "device_gib", "timed_s", "loss", "mfu",
           "compile_s", "failure")  # of the CSV
PEER = os.path.join(ROOT, "scripts", "torch_gpt2.py")
BEGAN = time.monotonic()
WARM_UP_S = 1.0  # of ours, not timed; torch_gpt2.py has its own
FEW_STEPS = 4  # timed at least: two of d48 by two GPUs, 8.7 s, took 1 % more than those behind them
OURS_TFLOPS = 620  # more than ours reaches, for the steps of its first turn; the next ones take its own time
OURS_LIMIT_S = 180  # a process that takes longer is stopped


def dropout_flags(configuration):
    """The same for both programs."""
    return ["--dropout", f"{configuration.dropout:g}"] if configuration.dropout else []


# ---- PyTorch ----


class Torch:
    """scripts/torch_gpt2.py, kept between its turns so that it compiles once. It takes the card when it is told to compile, one
    way. A failure is kept in .failure."""

    def __init__(self, configuration, shard, limit_s, more=(), environment=None):
        """more: further flags; environment: variables beside this process's own."""
        command = [sys.executable, PEER, "--model", configuration.model,
                   "--batch", str(configuration.B), "--seq", str(configuration.T), "--tokens", shard, *dropout_flags(configuration), *more]
        self.way, self.limit_s, self.failure, self.turns, self.compiled_s = None, limit_s, "", [], math.nan
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        env={**os.environ, **(environment or {})})

    def ask(self, line):
        """Its answer to a line, of JSON; None, and .failure, where there is none in time."""
        try:
            print(line, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # it has ended: the answer says why
        timer, began = threading.Timer(self.limit_s, self.process.kill), time.monotonic()
        timer.start()
        answer = self.process.stdout.readline()
        timer.cancel()
        timer.join()
        if answer:
            return json.loads(answer)
        status = self.process.wait()
        self.errors.seek(0)
        lines = [text.strip() for text in self.errors if "Error" in text or "error" in text]
        said = [text for text in lines if re.match(r"[\w.]+(Error|Exception): ", text)] or lines
        stopped = f"stopped after {self.limit_s:.0f} s"
        self.failure = stopped if time.monotonic() - began >= self.limit_s else said[-1][:200] if said else f"ended with status {status}"
        return None

    def compile(self, way):
        self.way = way
        ready = self.ask(" ".join(way))
        self.compiled_s = ready["compiled_s"] if ready else math.nan

    def turn(self, seconds, micro_steps=1):
        """Trains for about so long; {ms of a step, seconds, loss, memory, device_memory} or None. memory: the most that was in use,
        device_memory: that the allocator held, GiB."""
        result = None if self.failure else self.ask(seconds if micro_steps == 1 else f"{seconds} {micro_steps}")
        if result:
            self.turns.append({"ms": 1e3 * result["seconds"] / result["steps"], "seconds": result["seconds"], "loss": result["loss"],
                               "memory": result["memory"] / 2**30, "device_memory": result["reserved"] / 2**30})
        return self.turns[-1] if result else None

    def close(self):
        self.process.kill()
        self.process.wait()


class Ahead:
    """The processes of all ways in their order, each started a little before it is needed: importing PyTorch takes seconds."""

    def __init__(self, wanted, shard, limit_s):
        self.wanted, self.started, self.shard, self.limit_s = list(wanted), collections.deque(), shard, limit_s

    def next(self):
        """The next one; two more are started behind it."""
        while self.wanted and len(self.started) < 3:
            with uninterrupted():
                self.started.append(Torch(self.wanted.pop(0), self.shard, self.limit_s))
        return self.started.popleft()

    def close(self):
        for torch in self.started:
            torch.close()


# ---- ours ----


def n_steps(configuration, seconds, turns, gpus=1):
    """Steps of ours: the first one, the warm-up, and so many seconds; by its last turn, else by their FLOP."""
    flop = tokens_of(configuration, gpus) / gpus * flop_of_token(configuration.model, configuration.T)
    step_s = 1e-3 * turns[-1]["ms"] if turns else flop / (OURS_TFLOPS * 1e12)
    return 1 + math.ceil(WARM_UP_S / step_s) + max(FEW_STEPS, math.ceil(seconds / step_s))


def timing_of(steps):
    """{ms, seconds, loss, mfu} of a log's steps after the first one, which also chooses plans, and a second of warm-up."""
    passed_ms, timed = 0.0, []
    for i, row in enumerate(steps[1:], 1):
        if passed_ms >= 1e3 * WARM_UP_S or i >= len(steps) - 2:
            timed.append(row["ms"])
        passed_ms += row["ms"]
    return {"ms": sum(timed) / len(timed), "seconds": sum(timed) / 1e3, "loss": steps[-1]["loss"],
            "mfu": statistics.mean(row["mfu"] for row in steps[len(steps) // 2:])}


def flags_of(configuration, arguments):
    """More flags of ours: --flags, or else the configuration's own."""
    return configuration.flags.split() if arguments.flags is None else arguments.flags


def command_of_ours(configuration, shard, arguments, out, steps, gpus=1):
    tokens, flags = tokens_of(configuration, gpus), flags_of(configuration, arguments)
    return [os.path.abspath(arguments.program), "--model", configuration.model, "--train", shard, "--batch", str(configuration.B),
            "--seq", str(configuration.T), "--tokens-per-step", str(tokens), "--steps", str(steps),
            *([] if "--optimizer" in flags else ["--optimizer", "adamw"]), "--sample-tokens", "0", "--eval-every", "0", "--out", out, "--model-only",
            *(["--gpus", str(gpus)] if gpus > 1 else []), *dropout_flags(configuration), *flags]


def run_ours(configuration, shard, arguments, work, steps, gpus=1, environment=None):
    """({ms, seconds, loss, mfu, memory, device_memory}, ""), or (None, what failed). environment: variables beside this process's own."""
    out = os.path.join(work, "run")
    command = command_of_ours(configuration, shard, arguments, out, steps, gpus)
    try:
        done, failure = run_program(command, OURS_LIMIT_S, environment)
        if not done:
            return None, failure
        measured = re.search(r"^memory: .*measured (.*)$", done.stdout, re.MULTILINE)
        memory = gib(measured[1])
        return {**timing_of(read_log(out).steps), "memory": memory, "device_memory": memory}, ""
    finally:
        shutil.rmtree(out, ignore_errors=True)


# ---- the comparison ----


def row_name(configuration):
    """In the CSV and the tables."""
    return name_of(configuration) + (f" dropout {configuration.dropout:g}" if configuration.dropout else "")


class Turns:
    """The lines of the CSV, which are printed as they come and make the tables in the end."""

    def __init__(self, report, columns=COLUMNS):
        self.report, self.columns, self.rows = report, columns, []

    def add(self, configuration, program, result, gpus=1, way=("", ""), compiled_s=math.nan, **texts):
        """One turn. texts: columns that are not of its result: flags, failure and so on."""
        result = result or {}

        def text(name, form):
            return form.format(result[name]) if name in result else ""

        tok_s = f"{1e3 * tokens_of(configuration, gpus) / result['ms']:.0f}" if result else ""
        found = dict(configuration=row_name(configuration), program=program, gpus=str(gpus), attention=way[0], mode=way[1],
                     ms=text("ms", "{:.3f}"), tok_s=tok_s, memory_gib=text("memory", "{:.2f}"), device_gib=text("device_memory", "{:.2f}"),
                     timed_s=text("seconds", "{:.1f}"), loss=text("loss", "{:.4f}"), mfu=text("mfu", "{:.4f}"),
                     compile_s="" if math.isnan(compiled_s) else f"{compiled_s:.0f}", **texts)
        row = {name: found.get(name, "") for name in self.columns}
        self.rows.append(row)
        self.report.record(**row)
        print(f"{time.monotonic() - BEGAN:5.0f} s  " + "  ".join(filter(None, row.values())), flush=True)


def fastest_way(configuration, ahead, arguments, turns):
    """Gives each way a turn; returns the Torch that was the fastest, or None."""
    best = None
    for way in arguments.ways or configuration.ways:
        torch = ahead.next()
        if way[0] == "best":
            way = (best.way[0] if best else "cudnn", way[1])
        if arguments.no_new_after and time.monotonic() - BEGAN > arguments.no_new_after and way[1] != "default":
            torch.failure = "not run: no time was left"
        else:
            torch.compile(way)
        result = torch.turn(arguments.seconds)
        turns.add(configuration, "torch", result, way=way, compiled_s=torch.compiled_s, failure=torch.failure)
        if result and (not best or result["ms"] < best.turns[0]["ms"]):
            best, torch = torch, best
        if torch:
            torch.close()
    return best


def compare(configuration, ahead, shard, arguments, work, turns):
    """All turns of one configuration."""
    best, own, flags = fastest_way(configuration, ahead, arguments, turns), [], " ".join(flags_of(configuration, arguments))
    for i in range(arguments.turns):
        result, failure = run_ours(configuration, shard, arguments, work, n_steps(configuration, arguments.seconds, own))
        turns.add(configuration, "train_gpt2cu", result, flags=flags, failure=failure)
        if not result:
            break
        own.append(result)
        if best and i + 1 < arguments.turns:
            again = best.turn(arguments.seconds)
            turns.add(configuration, "torch", again, way=best.way, compiled_s=best.compiled_s, failure=best.failure)
    if best:
        best.close()


# ---- the program ----


def configuration_of(text):
    """One of --only: a name of the list, or MODEL:BxT of any other."""
    known = {name_of(c): c for c in CONFIGURATIONS}
    case = named_case(text)
    return known.get(text) or Configuration(case.model, case.B, case.T, DEFAULT)


def way_of(text):
    """One of --ways."""
    attention, _, mode = text.partition("/")
    if attention not in ("cudnn", "flash", "flash3", "best") or mode not in MODES:
        raise argparse.ArgumentTypeError(f"expected ATTENTION/MODE, such as flash3/max-autotune, of cudnn, flash (FlashAttention-2), "
                                         f"flash3 or best (of the ways before), and {', '.join(MODES)}; found {text!r}")
    return attention, mode


FLASH2 = {"flash3": "flash"}  # what a configuration's ways take with dropout in FlashAttention-3's place


def that_drop(ways):
    """Those with dropout: FlashAttention-3 has none."""
    return [way for way in ways if way[0] != "flash3"]


def words(text):
    """The type of --flags: the words of a command line."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error} in {text!r}")


def parse_arguments(argv):
    described = "\n".join(f"    {name_of(c):14s} {' '.join('/'.join(way) for way in c.ways)}" for c in CONFIGURATIONS)
    parser = Parser(description=__doc__ + described, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=listed(configuration_of), default=CONFIGURATIONS, metavar="LIST",
                        help="configurations as MODEL:BxT, of the list above or others")
    parser.add_argument("--seconds", type=duration(1, 60), default=5.0, metavar="S", help="timed in a turn (default 5)")
    parser.add_argument("--turns", type=integer(1, 100), default=3, metavar="N", help="of each program (default 3)")
    parser.add_argument("--train", metavar="FILE", help="token shard; default: random tokens")
    parser.add_argument("--flags", type=words, metavar="TEXT",
                        help="more flags of ./train_gpt2cu, in place of the configuration's own")
    parser.add_argument("--ways", type=listed(way_of), metavar="LIST", help="of PyTorch, as ATTENTION/MODE, in place of a configuration's own")
    parser.add_argument("--dropout", type=number(0, 0.99), default=0.0, metavar="P", help="of both programs; flash3 has none (default 0)")
    parser.add_argument("--limit", type=duration(1, 3600), default=420, metavar="S", help="that a way may take to compile (default 420)")
    parser.add_argument("--no-new-after", type=duration(0, 86400), metavar="S",
                        help="after so long since the start no mode but the default one is begun")
    parser.add_argument("--program", default="./train_gpt2cu", metavar="FILE", help="our trainer (default ./train_gpt2cu)")
    parser.add_argument("--device", type=integer(0, 63), metavar="N", help="the card's number (default: the first that is visible)")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    arguments = parser.parse_args(argv)
    if arguments.dropout:
        if arguments.ways and not that_drop(arguments.ways):
            parser.error("--ways: flash3 has no dropout: expected others, such as cudnn/default,flash/default")
        arguments.ways = arguments.ways and that_drop(arguments.ways)
        arguments.only = [c._replace(dropout=arguments.dropout, ways=[(FLASH2.get(attention, attention), mode) for attention, mode in c.ways])
                          for c in arguments.only]
    return arguments


def main():
    arguments = parse_arguments(sys.argv[1:])
    if arguments.train:
        random_shard.check(arguments.train)
    need_program(arguments.program)
    report = Report(arguments.csv, arguments.markdown)
    torch = torch_on_card(arguments.device)
    report.header(environment(torch, commit_of(os.path.abspath(arguments.program))))
    turns = Turns(report)
    with tempfile.TemporaryDirectory() as work:
        shard = random_shard.given_or_random(arguments.train, work)
        ahead = Ahead([c for c in arguments.only for _ in arguments.ways or c.ways], shard, arguments.limit)
        try:
            for configuration in arguments.only:
                compare(configuration, ahead, shard, arguments, work, turns)
        finally:
            ahead.close()
    whole = combine_train(turns.rows, report)
    report.close()
    return 0 if whole else EXIT_RUN


if __name__ == "__main__":
    end_with(main)
