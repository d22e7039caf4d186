#!/usr/bin/env python3
"""Compares how ./train_gpt2cu and PyTorch (scripts/torch_gpt2.py: DistributedDataParallel, torch.compile, fused AdamW, bf16
autocast) scale from one GPU of this host to several: tokens/s of both on 1 and on N, and N's in percent of linear.

    make train_gpt2cu && scripts/compare_scaling.py --csv scaling.csv --markdown scaling.md   # 2 GPUs, about 12 minutes on H200
    scripts/compare_scaling.py --cases d12:64x1024,d24:32x1024 --seconds 3 --deadline 270     # about 280 s
    scripts/compare_scaling.py --gpus 4 --buckets 100 --csv scaling_4.csv                     # four GPUs beside one
    scripts/compare_scaling.py --cases d48:16x1024/524288 --add scaling.csv --csv scaling.csv # one case more, in the same table
    scripts/compare_scaling.py --dry-run                                                      # the commands alone

A case is MODEL:BxT, one micro-step on each GPU, where nothing hides communication but backward itself; or MODEL:BxT/TOKENS, so
many tokens a step at any count, by gradient accumulation, of whose micro-steps only the last communicates.
Turns of all go there and back in one run; only one program trains at a time, after 1 s of it that is not timed. One GPU: all N cards at
the same time, each by itself, so that linear is what they do with nothing between them, as warm as they are together. PyTorch on
N GPUs is tried with each bucket size of --buckets in the first round; the fastest goes on. NVLink multicast (NCCL_NVLS_ENABLE) is off for both unless the variable is set. The CSV has a
line for every turn; scripts/scaling.py --check holds its model to it.
"""
import argparse
import concurrent.futures
import itertools
import math
import os
import shlex
import statistics
import sys
import tempfile
import time

import random_shard
from cases import micro_steps_of, name_of, named_step, tokens_of
from combine import SAME, read_run, spread
from comparison import (EXIT_RUN, Parser, Report, commit_of, duration, end_with, environment, fail, free_port, integer, listed, need_program,
                        number, torch_on_card, torchrun_variables, visible_card)
from compare_train import PEER, Torch, Turns, command_of_ours, configuration_of, flags_of, n_steps, run_ours, way_of, words

# Percent of linear that ours is to reach on 2 GPUs, and a point less on 4. 524,288 tokens are a step of GPT-2's recipes.
MUST = {"d12:16x1024": 95.0, "d12:64x1024/524288": 99.0, "d24:32x1024/524288": 99.0, "d48:16x1024/524288": 99.5}
CASES = "d12:16x1024,d12:64x1024,d12:64x1024/524288,d24:32x1024,d24:32x1024/524288,d48:16x1024/524288"
COLUMNS = ("configuration", "program", "gpus", "cards", "attention", "mode", "bucket_mb", "flags", "ms", "tok_s", "device_gib", "timed_s",
           "loss", "compile_s", "failure")  # of the CSV
TOGETHER = ("d12", "d24")  # models of which all of PyTorch's processes have room on a card while they compile
BEGAN = time.monotonic()


class Group:
    """PyTorch on `cards` GPUs: one scripts/torch_gpt2.py each, told the same; with a bucket size they are ranks of one run, and without
    each trains by itself. Like a Torch: .compile(), .turn(), .turns, .failure."""

    def __init__(self, configuration, cards, bucket_mb, shard, limit_s):
        self.gpus, self.bucket_mb, self.turns, self.failure, self.compiled_s, self.way = cards if bucket_mb else 1, bucket_mb, [], "", math.nan, ("", "")
        port, more = free_port(), ["--bucket-mb", f"{bucket_mb:g}"] if bucket_mb else []
        self.members = [Torch(configuration, shard, limit_s, more, torchrun_variables(card, cards, port) if bucket_mb else {"CUDA_VISIBLE_DEVICES": visible_card(card)})
                        for card in range(cards)]
        self.pool = concurrent.futures.ThreadPoolExecutor(cards)

    def of_all(self, function):
        """function(member) on all at once. Where one fails, the others would wait for it: they are ended, and its words are kept."""

        def call(member):
            result = function(member)
            if member.failure:
                self.failure = self.failure or member.failure
                self.close()
            return result

        return list(self.pool.map(call, self.members))

    def compile(self, way):
        self.way = way
        self.of_all(lambda member: member.compile(way))
        self.compiled_s = self.members[0].compiled_s

    def turn(self, seconds, micro_steps):
        """[(card, result)]: of each card by itself, or of all, card "". A result is None where one failed."""
        results = self.of_all(lambda member: member.turn(seconds, micro_steps)) if not self.failure else [None]
        if None in results:
            return [("", None)]
        if not self.bucket_mb:
            return [(str(card), result) for card, result in enumerate(results)]
        memory = {name: max(result[name] for result in results) for name in ("memory", "device_memory")}
        self.turns.append({**results[0], **memory})
        return [("", self.turns[-1])]

    def close(self):
        for member in self.members:
            member.close()


# ---- turns ----


def add_earlier(run, header, turns):
    """Rows of an earlier run of the same programs."""
    found = dict(header)
    if not run.rows or "bucket_mb" not in run.rows[0]:
        fail(f"--add {run.path}: expected rows of compare_scaling.py, found {', '.join(run.rows[0]) if run.rows else 'none'}")
    for name in (*SAME, "NCCL"):
        if run.header.get(name) != found.get(name):
            fail(f"--add {run.path}: {name}: expected {found.get(name)}, found {run.header.get(name)}")
    for row in run.rows:
        turns.rows.append(row)
        turns.report.record(**row)


def late(arguments):
    return arguments.deadline and time.monotonic() - BEGAN > arguments.deadline


def turn_of_ours(configuration, gpus, shard, arguments, work, turns, own):
    """One turn on `gpus`; one GPU: of every card by itself, at the same time."""
    if late(arguments):
        turns.add(configuration, "train_gpt2cu", None, gpus, failure="not run: no time was left")
        return
    steps = n_steps(configuration, arguments.seconds, own, gpus)

    def run_on(card):
        folder = os.path.join(work, f"card{card}")
        os.makedirs(folder, exist_ok=True)
        return run_ours(configuration, shard, arguments, folder, steps, gpus, {"CUDA_VISIBLE_DEVICES": visible_card(int(card))} if card else None)

    cards = [str(card) for card in range(arguments.gpus)] if gpus == 1 else [""]
    with concurrent.futures.ThreadPoolExecutor(len(cards)) as pool:
        for card, (result, failure) in zip(cards, pool.map(run_on, cards)):
            turns.add(configuration, "train_gpt2cu", result, gpus, flags=" ".join(flags_of(configuration, arguments)), failure=failure, cards=card)
            own += [result] if result else []


def turn_of_torch(configuration, group, arguments, turns):
    late_now = late(arguments)
    results = [("", None)] if late_now else group.turn(arguments.seconds, micro_steps_of(configuration, group.gpus))
    for card, result in results:
        turns.add(configuration, "torch", result, group.gpus, group.way, group.compiled_s, cards=card, bucket_mb=f"{group.bucket_mb:g}" if group.bucket_mb else "",
                  failure=group.failure or ("not run: no time was left" if late_now else ""))


def fastest(groups):
    """Of those that have a turn; None where none has. The others are ended."""
    best = min((group for group in groups if group.turns), key=lambda group: group.turns[0]["ms"], default=None)
    for group in groups:
        if group is not best:
            group.close()
    return best


def compile_all(configuration, groups, way):
    """At the same time where the cards have room: compiling keeps the CPU's cores busy and hardly the cards."""
    with concurrent.futures.ThreadPoolExecutor(len(groups) if configuration.model in TOGETHER else 1) as pool:
        list(pool.map(lambda group: group.compile(way), groups))


def groups_of(configuration, shard, arguments):
    return [Group(configuration, arguments.gpus, bucket_mb, shard, arguments.limit) for bucket_mb in (0, *arguments.buckets)]


def of_one_micro_batch(configurations):
    """Lists of those that are neighbours and differ in the tokens of a step alone: PyTorch compiles once for them."""
    return [list(cases) for _, cases in itertools.groupby(configurations, key=lambda case: case[:3])]


def there_and_back(turn, programs):
    """Each second turn the other way round: two degrees more, a turn later, cost a card at its power limit 0.4 % of its clock."""
    return programs if turn % 2 == 0 else programs[::-1]


def compare(configurations, groups, shard, arguments, work, turns):
    """All turns of the cases of one micro-batch. groups: groups_of() it, or none; the fastest bucket goes on behind the first round."""
    try:
        if groups and not late(arguments):
            compile_all(configurations[0], groups, arguments.way)
        several, failed = groups[1:], set()
        for configuration in configurations:
            own = {1: [], arguments.gpus: []}
            for turn in range(arguments.turns):
                for one in there_and_back(turn, [*own, *groups[:1], *several]):
                    if one in own:
                        turn_of_ours(configuration, one, shard, arguments, work, turns, own[one])
                    elif one not in failed:
                        turn_of_torch(configuration, one, arguments, turns)
                        failed |= {one} if one.failure else set()
                if len(several) > 1:
                    several = [group for group in [fastest(several)] if group]
    finally:
        for group in groups:
            group.close()


# ---- the table ----


def rates(rows, configuration, program, gpus, bucket_mb=None):
    """Tokens/s of each turn."""
    return [float(row["tok_s"]) for row in rows if row["tok_s"] and (row["configuration"], row["program"], row["gpus"]) == (configuration, program, str(gpus))
            and bucket_mb in (None, row["bucket_mb"])]


def best_bucket(rows, configuration, gpus):
    """The bucket size, as text, whose turns are the fastest by their median; None where PyTorch has no turn."""
    known = {row["bucket_mb"] for row in rows if row["program"] == "torch" and row["gpus"] == str(gpus) and row["configuration"] == configuration and row["tok_s"]}
    return max(sorted(known), key=lambda size: statistics.median(rates(rows, configuration, "torch", gpus, size)), default=None)


def linear_of(rows, configuration, program, gpus):
    """What `gpus` cards do, each by itself: so many times the mean of the cards' medians; nan where none has a turn."""
    cards = {row["cards"] for row in rows}
    medians = [statistics.median(found) for found in (rates([row for row in rows if row["cards"] == card], configuration, program, 1) for card in cards) if found]
    return gpus * statistics.mean(medians) if medians else math.nan


def percent(linear, several):
    return 100 * statistics.median(several) / linear if several else math.nan


def verdict(configuration, gpus, reached):
    if configuration not in MUST or gpus not in (2, 4) or math.isnan(reached):
        return "-"
    must = MUST[configuration] - (gpus == 4)
    return f"{'yes' if reached >= must else 'no'} >={must:g}"


def table(rows, gpus, report):
    """Returns whether every case has ours on 1 and on `gpus`."""
    whole = True
    report.table(f"### {gpus} GPUs of one host beside one, bf16", [
        f"{'model, B x T a GPU / tokens':>27s}", f"{'ours, 1 GPU, tok/s':>30s}", f"{f'{gpus} GPUs':>34s}", "% of linear", f"{'must':>12s}",
        f"{'PyTorch, 1 GPU':>30s}", f"{f'{gpus} GPUs':>34s}", "% of linear", "bucket MB", "ratio"])
    for configuration in dict.fromkeys(row["configuration"] for row in rows):
        ours = [rates(rows, configuration, "train_gpt2cu", n) for n in (1, gpus)]
        bucket = best_bucket(rows, configuration, gpus)
        peer = [rates(rows, configuration, "torch", 1), rates(rows, configuration, "torch", gpus, bucket) if bucket is not None else []]
        reached, theirs = (percent(linear_of(rows, configuration, program, gpus), found[1]) for program, found in (("train_gpt2cu", ours), ("torch", peer)))
        whole = whole and not math.isnan(reached)

        def cell(value, form):
            return "-" if math.isnan(value) else form.format(value)

        ratio = statistics.median(ours[1]) / statistics.median(peer[1]) if ours[1] and peer[1] else math.nan
        report.row([configuration] + [spread(x, "{:,.0f}") if x else "-" for x in ours] + [cell(reached, "{:.2f}"), verdict(configuration, gpus, reached)]
                   + [spread(x, "{:,.0f}") if x else "-" for x in peer] + [cell(theirs, "{:.2f}"), bucket or "-", cell(ratio, "{:.2f}")])
    report.note("Medians over turns (least to most). A step is one micro-step on each GPU, or has so many tokens at any count. % of linear: the rate on several GPUs over the sum of what "
                "these cards do at the same time, each by itself: 1 GPU. ratio: ours over PyTorch on several GPUs. PyTorch: DistributedDataParallel, "
                "torch.compile, fused AdamW, gradients as views of buckets, static graph, the faster of the bucket sizes.")
    return whole


# ---- the program ----


def one_way(text):
    """The type of --way."""
    if text.startswith("best"):
        raise argparse.ArgumentTypeError(f"expected one ATTENTION/MODE, such as flash3/default, found {text!r}")
    return way_of(text)


def scaled(text):
    """One of --cases."""
    case = named_step(text)
    return configuration_of(name_of(case._replace(tokens=0)))._replace(tokens=case.tokens)


def parse_arguments(argv):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=listed(scaled), default=CASES, metavar="LIST", help=f"MODEL:BxT or MODEL:BxT/TOKENS, B of one GPU (default {CASES})")
    parser.add_argument("--gpus", type=integer(2, 64), default=2, metavar="N", help="of this host, beside one (default 2)")
    parser.add_argument("--seconds", type=duration(1, 60), default=5.0, metavar="S", help="timed in a turn (default 5)")
    parser.add_argument("--turns", type=integer(1, 100), default=3, metavar="N", help="of each program and count (default 3)")
    parser.add_argument("--buckets", type=listed(number(1, 10000, "{:g} to {:g} MB")), default=[25.0, 100.0], metavar="LIST", help="MB of gradients in an all-reduce of PyTorch (default 25,100)")
    parser.add_argument("--way", type=one_way, default=("flash3", "default"), metavar="ATTENTION/MODE",
                        help="of PyTorch (default flash3/default, the fastest of compare_train.py at these sizes)")
    parser.add_argument("--flags", type=words, metavar="TEXT", help="more flags of ./train_gpt2cu")
    parser.add_argument("--ours-only", action="store_true", help="without PyTorch's turns")
    parser.add_argument("--limit", type=duration(1, 3600), default=200, metavar="S", help="that PyTorch may take to compile (default 200)")
    parser.add_argument("--deadline", type=duration(1, 86400), metavar="S", help="no turn begins so long after the start")
    parser.add_argument("--train", metavar="FILE", help="token shard; default: random tokens")
    parser.add_argument("--program", default="./train_gpt2cu", metavar="FILE", help="our trainer (default ./train_gpt2cu)")
    parser.add_argument("--add", metavar="FILE", help="CSV of an earlier run of the same binary and PyTorch: its cases stand before these")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and exit")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    arguments = parser.parse_args(argv)
    for case in arguments.cases:
        if None in (micro_steps_of(case, gpus) for gpus in (1, arguments.gpus)):
            parser.error(f"--cases {name_of(case)}: expected tokens that are a multiple of {tokens_of(case._replace(tokens=0), arguments.gpus)}, of all GPUs' micro-batches")
    return arguments


def dry_run(arguments):
    """Prints what would run, a line a command."""
    for configuration in arguments.cases:
        for gpus in (1, arguments.gpus):
            print(shlex.join(command_of_ours(configuration, "SHARD", arguments, "OUT", n_steps(configuration, arguments.seconds, [], gpus), gpus)))
        for bucket in [] if arguments.ours_only else [0.0] + arguments.buckets:
            ranks = f"{arguments.gpus} ranks: " if bucket else ""
            more = ["--bucket-mb", f"{bucket:g}"] if bucket else []
            print(f"{ranks}echo {' '.join(arguments.way)} | " + shlex.join([
                PEER, "--model", configuration.model, "--batch", str(configuration.B), "--seq", str(configuration.T), "--tokens", "SHARD", *more]))


def main():
    arguments = parse_arguments(sys.argv[1:])
    if arguments.dry_run:
        return dry_run(arguments)
    if arguments.train:
        random_shard.check(arguments.train)
    need_program(arguments.program)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    report = Report(arguments.csv, arguments.markdown)
    torch = torch_on_card()
    if torch.cuda.device_count() < arguments.gpus:
        fail(f"--gpus {arguments.gpus}: PyTorch sees {torch.cuda.device_count()}")
    header = environment(torch, commit_of(os.path.abspath(arguments.program)), arguments.gpus) + [
        ("NCCL", f"{'.'.join(map(str, torch.cuda.nccl.version()))} of PyTorch, NCCL_NVLS_ENABLE={os.environ['NCCL_NVLS_ENABLE']}")]
    earlier = read_run(arguments.add) if arguments.add else None
    report.header(header + [(f"before, {name}", earlier.header.get(name, "unknown")) for name in ("card", "command") if earlier])
    turns = Turns(report, COLUMNS)
    if earlier:
        add_earlier(earlier, header, turns)
    with tempfile.TemporaryDirectory() as work:
        shard = random_shard.given_or_random(arguments.train, work)
        # All at once: importing PyTorch takes seconds, and then they wait for their turn without a card.
        batches = of_one_micro_batch(arguments.cases)
        groups = [[] if arguments.ours_only else groups_of(configurations[0], shard, arguments) for configurations in batches]
        try:
            for configurations, its_groups in zip(batches, groups):
                compare(configurations, its_groups, shard, arguments, work, turns)
        finally:
            for group in sum(groups, []):
                group.close()
    whole = table(turns.rows, arguments.gpus, report)
    report.close()
    return 0 if whole else EXIT_RUN


if __name__ == "__main__":
    end_with(main)
