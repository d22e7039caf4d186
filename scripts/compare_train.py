#!/usr/bin/env python3
"""Compares training steps of ./train_gpt2cu and of GPT-2 in PyTorch (scripts/torch_gpt2.py: torch.compile, fused AdamW,
bf16 autocast) on the same card, model and batch: tokens/s, peak memory, ratios.

    make train_gpt2cu && scripts/compare_train.py                     # all configurations, about 9 minutes on an H200
    scripts/compare_train.py --only d12:64x1024,d24:32x1024 --csv train.csv
    scripts/compare_train.py --only d12:1x131072 --flags='--recompute block'

The two take turns on the card: PyTorch for half of --seconds, ours for all of them, PyTorch again, each under sustained
load and after 1 s of it that is not timed. torch.compile takes most of the time, and its cache is of one machine.
Device time of a configuration, about:
"""
import argparse
import array
import collections
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading

import random_shard
from comparison import EXIT_RUN, ROOT, Parser, Report, duration, end_with, environment, fail, gib, torch_on_card

# To add a configuration: a row. must_speed: tokens/s of ours over PyTorch's, at least; must_memory: ours over
# PyTorch's, at most. minutes: device time, torch.compile included. flags: of ours; at 4 x 16384 --recompute gelu
# takes 18.2 GiB and 207.8 ms where none takes 22.3 and 207.2, and linear 7.9 and 218.
Configuration = collections.namedtuple("Configuration", "model B T must_speed must_memory minutes flags", defaults=("",))
CONFIGURATIONS = [
    Configuration("d12", 64, 1024, 1.20, None, 1.0),
    Configuration("d12", 4, 1024, 1.50, None, 1.0),
    Configuration("d24", 32, 1024, 1.20, None, 1.3),
    Configuration("d48", 16, 1024, 1.15, None, 2.0),
    Configuration("d12", 4, 16384, 1.30, 0.7, 1.0, "--recompute gelu"),
    Configuration("d12", 1, 65536, 1.30, 0.7, 1.0, "--recompute gelu"),
    Configuration("d12", 1, 131072, 1.30, 0.7, 1.3, "--recompute gelu"),
]
SIZES = {"d12": (12, 768), "d24": (24, 1024), "d36": (36, 1280), "d48": (48, 1600)}  # layers, channels
SHARD_MAGIC, SHARD_VERSION, VOCABULARY = 20240520, 1, 50257
WARM_UP_S = 1.0  # of ours, not timed; torch_gpt2.py has its own
TORCH_LIMIT_S, OURS_LIMIT_S = 420, 180  # a process that takes longer is stopped


def name_of(configuration):
    return f"{configuration.model}:{configuration.B}x{configuration.T}"


def check_shard(path):
    """Ends the program unless the file begins as a shard does."""
    try:
        with open(path, "rb") as file:
            header = array.array("i", file.read(8))
    except OSError as error:
        fail(f"--train {path}: cannot be read: {error.strerror}")
    except ValueError:
        header = []
    if list(header) != [SHARD_MAGIC, SHARD_VERSION]:
        fail(f"--train {path}: expected a token shard (it begins with {SHARD_MAGIC}, {SHARD_VERSION}), found "
             f"{list(header)}; hint: make data/tinyshakespeare makes one")


# ---- PyTorch ----


class Torch:
    """scripts/torch_gpt2.py, kept between its turns so that it compiles once. A failure is kept in .failure."""

    def __init__(self, configuration, shard, arguments):
        command = [sys.executable, os.path.join(ROOT, "scripts", "torch_gpt2.py"), "--model", configuration.model,
                   "--batch", str(configuration.B), "--seq", str(configuration.T), "--tokens", shard,
                   "--sdpa", arguments.sdpa, "--mode", arguments.mode]
        self.failure, self.turns = None, []
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        ready = self.answer()
        self.compiled_s = ready["compiled_s"] if ready else math.nan

    def answer(self):
        """The next line of JSON; None, and .failure, where there is none in time."""
        timer = threading.Timer(TORCH_LIMIT_S, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        timer.join()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        said = [text.strip() for text in self.errors if "Error" in text or "error" in text]
        self.failure = said[-1][:200] if said else f"ended with status {self.process.returncode}"
        return None

    def turn(self, seconds):
        """Trains for about so long."""
        if self.failure:
            return
        try:
            print(seconds, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # it has ended: the answer says why
        result = self.answer()
        if result:
            self.turns.append(result)

    def close(self):
        """Ends the process; {ms, seconds, loss, memory, device_memory} of all turns, None after a failure. memory: the most
        that was in use, device_memory: that the allocator held, GiB."""
        if self.failure:
            return None
        self.process.communicate()
        steps, seconds = (sum(turn[key] for turn in self.turns) for key in ("steps", "seconds"))
        memory, reserved = (max(turn[key] for turn in self.turns) / 2**30 for key in ("memory", "reserved"))
        return {"ms": 1e3 * seconds / steps, "seconds": seconds, "loss": self.turns[-1]["loss"], "memory": memory,
                "device_memory": reserved}


# ---- ours ----


def n_steps(configuration, seconds, peer):
    """Steps of ours that last about so long or longer: 1.5 x as fast as the peer's first turn, or without one at 700
    TFLOP/s, counting 6 FLOP a weight and token and causal attention."""
    if peer.turns:
        return 3 + math.ceil(seconds * 1.5 * peer.turns[0]["steps"] / peer.turns[0]["seconds"])
    layers, channels = SIZES[configuration.model]
    weights = 12 * layers * channels**2 + VOCABULARY * channels
    flop = 6.0 * configuration.B * configuration.T * (weights + layers * channels * configuration.T)
    return 3 + math.ceil(seconds * 700e12 / flop)


def read_log(path):
    """{ms, seconds, loss} over the steps after the first one, which also chooses plans, and a second of warm-up."""
    with open(path, encoding="utf-8") as file:
        steps = [row for row in map(json.loads, file) if "ms" in row]
    passed_ms, timed = 0.0, []
    for i, row in enumerate(steps[1:], 1):
        if passed_ms >= 1e3 * WARM_UP_S or i >= len(steps) - 2:
            timed.append(row["ms"])
        passed_ms += row["ms"]
    return {"ms": sum(timed) / len(timed), "seconds": sum(timed) / 1e3, "loss": steps[-1]["loss"]}


def flags_of(configuration, arguments):
    """More flags of ours: --flags, or else the configuration's own."""
    return configuration.flags.split() if arguments.flags is None else arguments.flags


def run_ours(configuration, shard, arguments, work, steps):
    """({ms, seconds, loss, memory, device_memory}, None), or (None, what failed)."""
    out = os.path.join(work, "run")
    tokens = configuration.B * configuration.T
    command = ["./train_gpt2cu", "--model", configuration.model, "--train", shard, "--batch", str(configuration.B),
               "--seq", str(configuration.T), "--tokens-per-step", str(tokens), "--steps", str(steps),
               "--sample-tokens", "0", "--eval-every", "0", "--out", out, "--model-only", *flags_of(configuration, arguments)]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=OURS_LIMIT_S)
        measured = re.search(r"^memory: .*measured (.*)$", result.stdout, re.MULTILINE)
        memory = gib(measured[1])
        return {**read_log(os.path.join(out, "log.jsonl")), "memory": memory, "device_memory": memory}, None
    except subprocess.TimeoutExpired:
        return None, f"stopped after {OURS_LIMIT_S} s"
    except subprocess.CalledProcessError as error:
        return None, (error.stderr.strip().splitlines() or [f"ended with status {error.returncode}"])[-1]
    finally:
        subprocess.run(["rm", "-rf", out], check=False)


# ---- the comparison ----


def compare(configuration, shard, arguments, work, report):
    """One row of the table; returns True if the configuration ran on both sides."""
    torch = Torch(configuration, shard, arguments)
    torch.turn(arguments.seconds / 2)
    steps = n_steps(configuration, arguments.seconds + WARM_UP_S, torch)
    ours, failure = run_ours(configuration, shard, arguments, work, steps)
    torch.turn(arguments.seconds / 2)
    peer = torch.close()
    for who, text in (("ours", failure), ("PyTorch", torch.failure)):
        if text:
            report.note(f"{name_of(configuration)}, {who}: {text}")
    tokens, flags = configuration.B * configuration.T, " ".join(flags_of(configuration, arguments))
    for program, result in (("train_gpt2cu", ours), ("torch", peer)):
        if result:
            report.record(
                configuration=name_of(configuration), program=program, flags=flags if result is ours else "",
                ms=f"{result['ms']:.3f}", tok_s=f"{1e3 * tokens / result['ms']:.0f}", memory_gib=f"{result['memory']:.2f}",
                device_gib=f"{result['device_memory']:.2f}", timed_s=f"{result['seconds']:.1f}", loss=f"{result['loss']:.4f}")
    report.row([name_of(configuration), *side(ours, tokens), *side(peer, tokens), *ratios(configuration, ours, peer),
                f"{torch.compiled_s:.0f}", flags])
    return bool(ours and peer and math.isfinite(ours["loss"]) and math.isfinite(peer["loss"]))


def side(result, tokens):
    """Cells of one program: tok/s, ms, GiB, loss."""
    if not result:
        return ["-"] * 4
    return [f"{1e3 * tokens / result['ms']:,.0f}", f"{result['ms']:.1f}", f"{result['memory']:.1f}", f"{result['loss']:.2f}"]


def ratios(configuration, ours, peer):
    """Cells: speed of ours over PyTorch's, memory, whether both are as they must."""
    if not (ours and peer):
        return ["-"] * 3
    speed, memory = peer["ms"] / ours["ms"], ours["memory"] / peer["memory"]
    held = (configuration.must_speed is None or speed >= configuration.must_speed) and (
        configuration.must_memory is None or memory <= configuration.must_memory)
    wanted = [f">={configuration.must_speed:.2f}" if configuration.must_speed else "",
              f"<={configuration.must_memory:.1f}" if configuration.must_memory else ""]
    return [f"{speed:.2f}", f"{memory:.2f}", " ".join(["yes" if held else "no", *filter(None, wanted)])
            if any(wanted) else "-"]


# ---- the program ----


def configurations(text):
    """The type of --only: names of the list, or MODEL:BxT of any other."""
    known, found = {name_of(c): c for c in CONFIGURATIONS}, []
    for name in text.split(","):
        match = re.fullmatch(r"(d\d+):(\d{1,6})x(\d{1,7})", name)
        if not match or match[1] not in SIZES or 0 in (int(match[2]), int(match[3])):
            raise argparse.ArgumentTypeError(
                f"expected MODEL:BxT, such as d12:64x1024, with a model of {', '.join(SIZES)}; found {name!r}")
        found.append(known.get(name) or Configuration(match[1], int(match[2]), int(match[3]), None, None, None))
    return found


def words(text):
    """The type of --flags: the words of a command line."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error} in {text!r}")


def parse_arguments(argv):
    listed = "\n".join(f"    {name_of(c):14s} {c.minutes:.1f} minutes  {c.flags}".rstrip() for c in CONFIGURATIONS)
    parser = Parser(description=__doc__ + listed, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=configurations, default=CONFIGURATIONS, metavar="LIST",
                        help="configurations as MODEL:BxT, of the list above or others")
    parser.add_argument("--seconds", type=duration(1, 60), default=10.0, metavar="S", help="timed, of each program (default 10)")
    parser.add_argument("--train", metavar="FILE", help="token shard; default: random tokens")
    parser.add_argument("--flags", type=words, metavar="TEXT",
                        help="more flags of ./train_gpt2cu, in place of the configuration's own")
    parser.add_argument("--sdpa", choices=("cudnn", "flash"), default="cudnn",
                        help="PyTorch's attention; flash: FlashAttention-2 (default cudnn, the faster one on Hopper)")
    parser.add_argument("--mode", choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
                        default="default", help="of torch.compile")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    return parser.parse_args(argv)


def main():
    arguments = parse_arguments(sys.argv[1:])
    if arguments.train:
        check_shard(arguments.train)
    if not os.access(os.path.join(ROOT, "train_gpt2cu"), os.X_OK):
        fail("./train_gpt2cu is missing; hint: make train_gpt2cu")
    report, ran = Report(arguments.csv, arguments.markdown), []
    torch = torch_on_card()
    report.header(environment(torch))
    report.table(f"### One card, bf16, {arguments.seconds:g} s each under load; PyTorch: torch.compile ({arguments.mode}), "
                 f"{arguments.sdpa} attention",
                 ["model, B x T  ", "ours tok/s", "     ms", "  GiB", " loss", "torch tok/s", "     ms", "  GiB", " loss",
                  "speed", "memory", "            must", "compile s", "flags of ours"])
    with tempfile.TemporaryDirectory() as work:
        shard = os.path.abspath(arguments.train) if arguments.train else os.path.join(work, "random_000001.bin")
        if not arguments.train:
            random_shard.write(shard)
        for configuration in arguments.only:
            ran.append(compare(configuration, shard, arguments, work, report))
    report.note("\nspeed: tokens/s of ours over PyTorch's; memory: the same of GiB. must: the least speed and the most memory that "
                "are aimed at, and whether both are met. GiB: peak; for ours all that it took of the device, for PyTorch what "
                "was in use of that. loss: the last one; weights and batches differ.")
    report.close()
    return 0 if all(ran) else EXIT_RUN


if __name__ == "__main__":
    end_with(main)
