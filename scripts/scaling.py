#!/usr/bin/env python3
"""Predicts training steps on 1 to 1,024 GPUs from what one and two of them measured: tokens/s, percent of linear, the term that limits.

    scripts/scaling.py                                                   # the cases below, 1 to 1024 GPUs
    scripts/scaling.py --cases d12:64x1024,d36:8x1024 --gpus 1,2,4,8,64 --network 180
    scripts/scaling.py --cases d12:64x1024 --tokens-per-step 524288      # the same global batch at every count
    scripts/scaling.py --check dev/results/nvidia-h200/compare_scaling.csv

A step of R ranks (llmc/comm/README.md) is the sum of
  compute    micro-steps, and AdamW on a part of 1/R; one GPU's step is measured (--measured, --ms)
  beside     what GEMMs lose while a collective of NCCL runs beside them (--contention of the collective's own time); within a
             host copies carry gradients and weights, beside which nothing is lost, and the ranks' terms are added behind backward
  gradients  reduce-scatters, layer by layer behind backward, on a stream of their own: what is left when backward ends.
             The embeddings' range is the last to be final, so it is always left
  sum        one small all-reduce of loss, norm and flags
  weights    all-gathers of bf16 weights, each beside the next part's AdamW: what is left when AdamW ends
  slowest    ranks wait for the slowest card of R (--spread)
A collective over a ring takes base + a hop for each rank passed + bytes x (R-1)/R / bandwidth. Inside a host the bandwidth is
NVLink's; between hosts all of a host's adapters together carry one ring. Nothing else uses the network.

--check holds the model to measured rows (configuration, program, gpus, ms): the step of one GPU is the file's own, the others
are predicted. Exit 1 where one is further off than --most percent.
"""
import argparse
import collections
import math
import os
import statistics
import sys

from cases import MODELS, PADDED_VOCABULARY, case_of, flop, flop_of_token, micro_steps_of, name_of, named_case, step_of, tokens_of
from combine import read_run
from comparison import EXIT_RUN, ROOT, Parser, Report, end_with, fail, integer, integers, listed, number, own_command

TILE = 1024  # elements, as llmc/model/gpt2_parameters.c has it
# Reads of fp32 gradients (norm, AdamW), reads and writes of two fp32 states and the master, writes of bf16 weights.
ADAMW_BYTES = 4 + 4 + 4 * 4 + 2 * 4 + 2
# Two H200 of one host (NVLink, 18 links; NCCL 2.28.9, NVLink multicast off): bytes, microseconds of reduce-scatter, all-gather.
LINKS = [(2, 2e6, 46, 41), (2, 8e6, 44, 44), (2, 28e6, 84, 84), (2, 154e6, 357, 374), (2, 498e6, 1039, 1032)]
# On two H200 a d12 step took as long with the reduce-scatters behind backward as beside it: 28.7 and 28.5 ms of 16 x 1024
# tokens, 100.9 and 101.1 of 64 x 1024.
CONTENTION = 1.0
# A hop's latency, microseconds, as NCCL's own cost model has it for large messages on a ring.
HOP_US, NETWORK_HOP_US = 3.4, 14.0
NETWORK = 360.0  # GB/s of a host: eight adapters of 400 Gb/s at nine tenths
MEMORY = 3500.0  # GB/s that AdamW reaches on an H200
# Percent, standard deviation of a micro-step's time between cards and from one to the next, at their power limit: with it the
# four cases of compare_scaling.csv are within 0.9 percent.
SPREAD = 4.5
CASES = "d12:64x1024,d12:16x1024,d24:32x1024,d36:16x1024,d48:16x1024"
MEASURED = os.path.join("dev", "results", "nvidia-h200", "compare_train.csv")

Links = collections.namedtuple("Links", "base_us hop_us bandwidth per_host network network_hop_us")  # GB/s
Machine = collections.namedtuple("Machine", "links memory contention spread")
# What a step of `gpus` is made of, milliseconds; slow: the terms whose collectives take more for latency than for bytes.
Step = collections.namedtuple("Step", "gpus compute beside gradients sum weights slowest slow")
TERMS = ("beside", "gradients", "sum", "weights", "slowest")


# ---- the model's sizes ----


def tiles(elements):
    return -(-elements // TILE)


def ranges(case):
    """Tiles of each range of parameters in the order of the layout: embeddings, blocks, the last norm. A tensor has whole tiles."""
    layers, _, C = MODELS[case.model]
    block = [C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C]
    return [tiles(PADDED_VOCABULARY * C) + tiles(case.T * C)] + layers * [sum(map(tiles, block))] + [2 * tiles(C)]


def elements(n_tiles, gpus):
    """Elements of a range that is padded to equal parts of whole tiles."""
    return -(-n_tiles // gpus) * gpus * TILE


def step_flop(case):
    return case.B * case.T * flop_of_token(case.model, case.T)


# ---- collectives ----


def hosts_of(links, gpus):
    return -(-gpus // links.per_host)


def latency_us(links, gpus):
    """Of one collective over a ring."""
    hosts = hosts_of(links, gpus)
    return links.base_us + (gpus - hosts) * links.hop_us + (hosts - 1) * links.network_hop_us


def collective_us(links, n_bytes, gpus):
    """A reduce-scatter or an all-gather of n_bytes in all."""
    if gpus == 1:
        return 0.0
    bandwidth = links.bandwidth if gpus <= links.per_host else min(links.bandwidth, links.network)
    return latency_us(links, gpus) + n_bytes * (gpus - 1) / gpus / (1e3 * bandwidth)


def sum_us(links, gpus):
    """The small all-reduce, over a tree: up and down."""
    if gpus == 1:
        return 0.0
    local, hosts = min(gpus, links.per_host), hosts_of(links, gpus)
    return links.base_us + 2 * (math.ceil(math.log2(local)) * links.hop_us + math.ceil(math.log2(hosts)) * links.network_hop_us)


def fit_links(rows, hop_us):
    """(base, bandwidth) that rows of (ranks, bytes, times...) are nearest to, by relative error."""
    points = [(n_bytes * (ranks - 1) / ranks / 1e3, time - (ranks - 1) * hop_us, time) for ranks, n_bytes, *times in rows for time in times]
    weight = [1 / time**2 for _, _, time in points]
    total = sum(weight)
    x = sum(w * point[0] for w, point in zip(weight, points)) / total
    y = sum(w * point[1] for w, point in zip(weight, points)) / total
    slope = (sum(w * (point[0] - x) * (point[1] - y) for w, point in zip(weight, points))
             / sum(w * (point[0] - x) ** 2 for w, point in zip(weight, points)))
    return max(0.0, y - slope * x), 1 / slope


def read_links(path):
    """Rows of (ranks, bytes, microseconds...) of a CSV with the columns ranks, bytes, reduce_scatter_us, all_gather_us."""
    rows = read_run(path).rows
    try:
        found = [tuple(float(row[name]) for name in ("ranks", "bytes", "reduce_scatter_us", "all_gather_us")) for row in rows]
    except (KeyError, ValueError):
        found = []
    if len({row[1] for row in found if row[0] > 1 and min(row) > 0}) < 2:
        fail(f"{path}: expected two rows or more with the columns ranks, bytes, reduce_scatter_us, all_gather_us, of different bytes")
    return found


# ---- a step ----


def adamw_ms(machine, case, gpus):
    return sum(elements(n, gpus) for n in ranges(case)) / gpus * ADAMW_BYTES / (1e6 * machine.memory)


def left_over(ready_us, costs_us):
    """What is left of a queue of collectives, each begun when it is ready and the one before it is done, behind the last that is ready."""
    end = 0.0
    for ready, cost in zip(ready_us, costs_us):
        end = max(ready, end) + cost
    return end - ready_us[-1]


def gradients_us(machine, case, micro_us, gpus):
    """(left behind backward, beside it) of the reduce-scatters. Backward goes from the head to the embeddings, and takes two thirds
    of the time."""
    head, block = flop(case.model, case.T)
    sizes = ranges(case)[::-1]
    unit = 2 / 3 * micro_us / (head + (len(sizes) - 2) * block)
    ready = [unit * (head + i * block) for i in range(len(sizes) - 1)]
    costs = [collective_us(machine.links, 4 * elements(n, gpus), gpus) for n in sizes]
    left = left_over(ready + ready[-1:], costs)
    return left, sum(costs) - left


def terms_ms(machine, case, gpus):
    """The sum of the ranks' gradients of the own parts: as many reads as ranks, and a write."""
    return sum(elements(n, gpus) for n in ranges(case)) / gpus * 4 * (gpus + 1) / (1e6 * machine.memory)


def weights_us(machine, case, gpus):
    """What is left of the all-gathers behind AdamW."""
    ready, costs, at = [], [], 0.0
    for n in ranges(case):
        at += 1e-3 * elements(n, gpus) / gpus * ADAMW_BYTES / machine.memory
        ready.append(at)
        costs.append(collective_us(machine.links, 2 * elements(n, gpus), gpus))
    return left_over(ready, costs)


def waiting_ms(machine, ms, gpus, micro_steps=1):
    """The slowest of `gpus` cards behind the mean one: the expected largest of so many normal values, each the sum of its
    micro-steps."""
    if gpus == 1:
        return 0.0
    return ms * machine.spread / micro_steps**0.5 / 100 * statistics.NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


def latency_bound(links, case, gpus):
    """The terms, of gradients and weights, whose collectives take more for latency than for bytes."""
    sizes = [elements(n, gpus) for n in ranges(case)]
    return tuple(term for term, width in (("gradients", 4), ("weights", 2))
                 if 2 * len(sizes) * latency_us(links, gpus) > sum(collective_us(links, width * n, gpus) for n in sizes))


def predict(machine, case, one_ms, gpus, micro_steps=1):
    """The step of `gpus`, where one GPU takes one_ms for a step of one micro-step."""
    micro_ms = one_ms - adamw_ms(machine, case, 1)
    if micro_ms <= 0:
        fail(f"{name_of(case)}: expected a step of more than {adamw_ms(machine, case, 1):.3f} ms, which AdamW alone takes, found {one_ms:g}")
    compute = micro_steps * micro_ms + adamw_ms(machine, case, gpus)
    if gpus == 1:
        return Step(1, compute, 0, 0, 0, 0, 0, ())
    left, beside = gradients_us(machine, case, 1e3 * micro_ms, gpus)
    copied = gpus <= machine.links.per_host
    lost, added = (0, terms_ms(machine, case, gpus)) if copied else (1e-3 * machine.contention * beside, 0)
    return Step(gpus, compute, lost, 1e-3 * left + added, 1e-3 * sum_us(machine.links, gpus),
                1e-3 * weights_us(machine, case, gpus), waiting_ms(machine, compute, gpus, micro_steps),
                latency_bound(machine.links, case, gpus))


def total_ms(step):
    return step.compute + sum(getattr(step, term) for term in TERMS)


def limit_of(step):
    """The name of the largest term that one GPU does not have."""
    if step.gpus == 1:
        return "-"
    term = max(TERMS, key=lambda name: getattr(step, name))
    if term in ("gradients", "weights"):
        term += ", latency" if term in step.slow else ", bandwidth"
    return term


# ---- one GPU's step ----


def milliseconds(path, text):
    """Of a cell; a line and the end where it is no time."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        fail(f"{path}: ms: expected a number above 0, found {text!r}")
    return value


def read_measured(path):
    """{case: milliseconds} of one GPU, medians over the turns of ours without flags in a CSV of compare_train.py; {} where it cannot be read."""
    found = collections.defaultdict(list)
    for row in read_run(path).rows:
        case = case_of(row.get("configuration", ""))
        if case and row.get("program") == "train_gpt2cu" and row.get("ms") and not row.get("flags") and row.get("gpus", "1") == "1":
            found[case].append(milliseconds(path, row["ms"]))
    return {case: statistics.median(times) for case, times in found.items()}


def one_gpu(case, measured):
    """(milliseconds, where they are from): as measured; on the line through two batches of this model; else by FLOP, as the nearest case."""
    if case in measured:
        return measured[case], "measured"
    same = sorted((other for other in measured if (other.model, other.T) == (case.model, case.T)), key=lambda other: abs(other.B - case.B))[:2]
    if len(same) == 2:
        a, b = same
        slope = (measured[b] - measured[a]) / (b.B - a.B)
        return measured[a] + slope * (case.B - a.B), f"on the line through {name_of(a)} and {name_of(b)}"
    if not measured:
        fail(f"{name_of(case)}: no measured step of one GPU; hint: --ms")
    near = min(measured, key=lambda other: (abs(math.log(step_flop(other) / step_flop(case))), name_of(other)))
    return measured[near] * step_flop(case) / step_flop(near), f"by FLOP, as {name_of(near)}"


def one_micro_ms(machine, case, ms):
    """One GPU's step of one micro-step, where its step of the case takes `ms`."""
    adamw = adamw_ms(machine, case, 1)
    return (ms - adamw) / micro_steps_of(case, 1) + adamw


# ---- tables ----


def predict_case(case, machine, measured, arguments, report):
    """The table of one case."""
    one_ms, source = (arguments.ms, "as --ms says") if arguments.ms else one_gpu(case, measured)
    parameters = sum(ranges(case)) * TILE
    report.table(f"### {name_of(case)} a GPU, {parameters / 1e6:.0f}M parameters", [
        " GPUs", "hosts", f"{'tokens/s':>13s}", "  ms a step", "% of linear"] + [f"{term:>9s}" for term in TERMS] + [f"{'limit':>20s}"])
    alone = {}
    for gpus in arguments.gpus:
        micro = micro_steps_of(case._replace(tokens=arguments.tokens_per_step), gpus) if arguments.tokens_per_step else arguments.micro_steps
        if not micro:
            report.row([str(gpus), str(hosts_of(machine.links, gpus))] + ["-"] * (3 + len(TERMS)) + ["no whole micro-step"])
            continue
        step = predict(machine, case, one_ms, gpus, micro)
        base = alone.setdefault(micro, total_ms(predict(machine, case, one_ms, 1, micro)))
        if arguments.tokens_per_step:  # against one GPU that does the whole batch
            base = total_ms(predict(machine, case, one_ms, 1, micro * gpus)) / gpus
        ms = total_ms(step)
        rate = 1e3 * gpus * micro * case.B * case.T / ms
        report.record(configuration=name_of(case), gpus=gpus, micro_steps=micro, ms=f"{ms:.3f}", tok_s=f"{rate:.0f}", percent=f"{100 * base / ms:.2f}",
                      compute_ms=f"{step.compute:.3f}", **{f"{term}_ms": f"{getattr(step, term):.3f}" for term in TERMS}, limit=limit_of(step))
        report.row([str(gpus), str(hosts_of(machine.links, gpus)), f"{rate:,.0f}", f"{ms:.2f}", f"{100 * base / ms:.1f}"]
                   + [f"{getattr(step, term):.3f}" for term in TERMS] + [limit_of(step)])
    report.note(f"One GPU's step: {one_ms:.2f} ms, {source}. The five terms in ms.")


def measured_rows(path):
    """{case: {gpus: milliseconds}} of ours in a CSV of compare_scaling.py: medians of the turns; of one GPU those of each card, of which
    the mean rate counts, as in compare_scaling.linear_of."""
    found = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(list)))
    for row in read_run(path).rows:
        if not {"configuration", "program", "gpus", "ms"} <= row.keys() or not row["gpus"].isdecimal():
            fail(f"{path}: expected the columns configuration, program, gpus, ms; found {', '.join(map('='.join, row.items()))}")
        case = step_of(row["configuration"])
        if case and row["program"] == "train_gpt2cu" and row["ms"]:
            found[case][int(row["gpus"])][row.get("cards")].append(milliseconds(path, row["ms"]))
    rows = {case: {gpus: statistics.harmonic_mean(map(statistics.median, cards.values())) for gpus, cards in counts.items()}
            for case, counts in found.items()}
    if not any(1 in counts and len(counts) > 1 for counts in rows.values()):
        fail(f"{path}: expected rows of ours on 1 GPU and on more of the same configuration")
    return rows


def check(machine, measured, arguments, report):
    """Holds the model to a file's rows; whether all are within --most percent."""
    report.table(f"### Predicted beside measured, {os.path.relpath(arguments.check, ROOT)}", [
        f"{'configuration':>14s}", "GPUs", "measured ms", "predicted ms", "error %", "measured % of linear", "predicted %", f"{'limit':>20s}"])
    worst = 0.0
    for case, counts in measured_rows(arguments.check).items():
        if 1 not in counts:
            continue
        for gpus, ms in sorted(counts.items()):
            if gpus == 1:
                if not measured or case.tokens:
                    continue
                predicted, source = one_gpu(case, measured)
                limit = source
            else:
                step = predict(machine, case, one_micro_ms(machine, case, counts[1]), gpus, micro_steps_of(case, gpus))
                predicted, limit = total_ms(step), limit_of(step)
            linear = counts[1] * tokens_of(case, gpus) / tokens_of(case, 1) / gpus
            error = 100 * (predicted / ms - 1)
            if gpus > 1:
                worst = max(worst, abs(error))
            report.record(configuration=name_of(case), gpus=gpus, measured_ms=f"{ms:.3f}", predicted_ms=f"{predicted:.3f}", error_percent=f"{error:.2f}")
            report.row([name_of(case), str(gpus), f"{ms:.3f}", f"{predicted:.3f}", f"{error:+.2f}", f"{100 * linear / ms:.2f}",
                        "-" if gpus == 1 else f"{100 * linear / predicted:.2f}", limit])
    held = worst <= arguments.most
    report.note(f"The largest error on more than one GPU is {worst:.2f} %, {'within' if held else 'beyond'} {arguments.most:g} % (--most). "
                "Rows of 1 GPU: another run's step against this one's; they are not held to --most.")
    return held


# ---- the program ----


def parse_arguments(argv):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=listed(named_case), default=CASES, metavar="LIST", help=f"MODEL:BxT of one GPU's micro-batch (default {CASES})")
    parser.add_argument("--gpus", type=integers(1, 65536), default="1:1024", metavar="LIST", help="1,2,4 or 1:1024, doubling (default 1:1024)")
    parser.add_argument("--micro-steps", type=integer(1, 1 << 20), default=1, metavar="N", help="of one GPU in a step (default 1)")
    parser.add_argument("--tokens-per-step", type=integer(0, 1 << 40), default=0, metavar="N",
                        help="over all GPUs, at every count; 0: --micro-steps on each GPU")
    parser.add_argument("--measured", default=os.path.join(ROOT, MEASURED), metavar="FILE", help=f"CSV of compare_train.py (default {MEASURED})")
    parser.add_argument("--ms", type=number(1e-3, 1e7), metavar="X", help="one GPU's step with one micro-step, in place of --measured")
    parser.add_argument("--links", metavar="FILE", help="CSV: ranks, bytes, reduce_scatter_us, all_gather_us; base and bandwidth are fitted to it")
    parser.add_argument("--nvlink", type=number(1, 1e5), metavar="X", help="GB/s that a rank sends in a collective (default: as two H200 measured)")
    parser.add_argument("--base-us", type=number(0, 1e5), metavar="X", help="of one collective (default: the same)")
    parser.add_argument("--hop-us", type=number(0, 1e5), default=HOP_US, metavar="X", help=f"to the next rank of a host (default {HOP_US})")
    parser.add_argument("--gpus-per-host", type=integer(1, 1024), default=8, metavar="N", help="default 8")
    parser.add_argument("--network", type=number(0.01, 1e5), default=NETWORK, metavar="X",
                        help=f"GB/s of all adapters of a host (default {NETWORK:g}, eight of 400 Gb/s)")
    parser.add_argument("--network-hop-us", type=number(0, 1e6), default=NETWORK_HOP_US, metavar="X", help=f"to the next host (default {NETWORK_HOP_US:g})")
    parser.add_argument("--memory", type=number(1, 1e5), default=MEMORY, metavar="X", help=f"GB/s of AdamW (default {MEMORY:g})")
    parser.add_argument("--contention", type=number(0, 10), default=round(CONTENTION, 2), metavar="X",
                        help=f"what GEMMs lose, of the time of a collective beside them (default {CONTENTION:g})")
    parser.add_argument("--spread", type=number(0, 50), default=SPREAD, metavar="PCT", help=f"of micro-steps between cards, standard deviation (default {SPREAD})")
    parser.add_argument("--check", metavar="FILE", help="CSV of compare_scaling.py")
    parser.add_argument("--most", type=number(0, 1000), default=2.0, metavar="PCT", help="error that --check allows (default 2)")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    return parser.parse_args(argv)


def machine_of(arguments):
    base, bandwidth = fit_links(read_links(arguments.links) if arguments.links else LINKS, arguments.hop_us)
    links = Links(base if arguments.base_us is None else arguments.base_us, arguments.hop_us, arguments.nvlink or bandwidth,
                  arguments.gpus_per_host, arguments.network, arguments.network_hop_us)
    return Machine(links, arguments.memory, arguments.contention, arguments.spread)


def main():
    arguments = parse_arguments(sys.argv[1:])
    machine = machine_of(arguments)
    measured = {} if arguments.ms else read_measured(arguments.measured)
    report = Report(arguments.csv, arguments.markdown)
    links, source = machine.links, "--ms" if arguments.ms else os.path.relpath(arguments.measured, ROOT)
    header = {} if arguments.ms else read_run(arguments.measured).header
    report.header([
        ("card", header.get("card", "unknown")), ("commit", header.get("commit", "unknown")), ("one GPU", source),
        ("links", f"in a host {links.bandwidth:.0f} GB/s, {links.base_us:.1f} us and {links.hop_us:g} us a hop; {links.per_host} GPUs a host; "
                  f"between hosts {links.network:g} GB/s a host, {links.network_hop_us:g} us a hop"),
        ("other", f"AdamW {machine.memory:g} GB/s, contention {machine.contention:g}, spread {machine.spread:g} %"),
        ("command", own_command())])
    held = True
    if arguments.check:
        held = check(machine, measured, arguments, report)
    else:
        for case in arguments.cases:
            predict_case(case, machine, measured, arguments, report)
    report.close()
    return 0 if held else EXIT_RUN


if __name__ == "__main__":
    end_with(main)
