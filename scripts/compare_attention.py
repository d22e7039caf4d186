#!/usr/bin/env python3
"""Compares this project's attention with PyTorch's on the same tensors, in one process: correctness first, then speed.

    scripts/compare_attention.py                                  # every cell, about 6 minutes on an H200
    scripts/compare_attention.py --quick                          # causal, three lengths, about 80 s
    scripts/compare_attention.py --head-size 128 --seq 4096:16384 --mask full --csv attention.csv
    scripts/compare_attention.py --window 256                     # causal, a query sees its last 256 positions
    scripts/compare_attention.py --documents 8 --peers FA3        # documents of random lengths, in the mean an eighth of T
    scripts/compare_attention.py --dropout 0.1                    # causal, with dropout of the probabilities, and ours without

Peers: cuDNN and FlashAttention-2 through PyTorch's own operators, FlashAttention-3 where a package brings its operators
(flash_attn_3, or xformers 0.0.33 or 0.0.34). Inputs are random normal bf16, qkv packed as (B,T,3,H,D); the peers read
views of it, no copies. One run is one sample: scripts/combine.py makes the table of medians from the CSVs of several,
and scripts/measure.sh makes them on every card of a machine.

Checked before anything is timed, for the output, dQ, dK, dV and the logsumexp: ours against a double-precision
reference on some heads (at most 2 x the best peer's error, as root mean square and as largest; a larger one may only
be what rounding to bf16 explains), ours against the best peer on all heads, and the bits of ours over --repeat
launches into poisoned buffers. A failed check: exit 1. With dropout every kernel draws masks of its own: ours is
held to the reference with its masks and to what rounding explains, a peer to finite results that keep 1 - P.

Timed under sustained load, because a card at its power limit slows down within 0.1 s: the kernels take turns in
slices of --slice seconds, each after 1.5 x as long of untimed launches of its own; median of CUDA events. Power control
swings for a few tenths of a second: slices of 0.1 s of one kernel differ by 4 %, of 0.5 s by 0.7 %. A peer that is far
behind in a short first round is not timed again (slices 0 in the CSV). Before the first cell all kernels take turns for a second, for it
would be the only one to begin on a cold card. Needs `make`, nvcc and PyTorch; builds build/libattention.so first
(for the machine's card, unless GPU_ARCH says otherwise).
"""
import argparse
import collections
import math
import os
import statistics
import subprocess
import sys
import time

import dropout_masks
from attention_kernels import DROPOUT_KEY, DROPOUT_SITE, TENSORS, Ours, Plain, State, document_bounds, document_ends, peers
from combine import NO_PEERS, must_attention
from comparison import (EXIT_RUN, ROOT, Parser, Report, commit, duration, end_with, environment, fail, integer, integers, number,
                        torch_on_card)

WARM_UP_S = 0.5  # at load before every row
COLD_S = 1.0  # of all kernels before the first
SETTLE = 1.5  # untimed part of a slice over the timed one: after 0.06 s the card's clock was still falling
SCOUT_S = 0.05  # a slice of the round before them
FAR_BEHIND = 1.15  # a peer so many times slower than the best one in that round is timed there alone
NOISE = 1e-6  # relative: what fp32 sums leave of a result that is exact otherwise, so smaller errors are not compared
ROUNDING = 2**-8 * 65 / 64  # of a bf16, 8 bits; the 65th part for sums and exponentials in fp32
DROPPED_ROUNDINGS = 3  # of a dS that is dropped, -P D: of P, of D and of the product
P_STEP = 1 / 16  # of cuDNN's probabilities, in some of its kernels
COLD_BYTES = 256 << 20  # buffers rotate where one set is smaller: five times the L2 cache of an H200

Case = collections.namedtuple("Case", "B T H D causal window documents dropout", defaults=[0, 0, 0.0])


def mask_name(case):
    if case.documents:
        return f"documents T / {case.documents}"
    if case.dropout:
        return f"dropout {case.dropout:g}"
    return f"window {case.window}" if case.window else "causal" if case.causal else "full"


def tflop(case, direction):
    """TFLOP of one launch: two products of T x T x D forward, five backward; causal counts half, a window of W the W - W W / 2 T
    keys that a query sees in the mean, a document of n its n n / 2 pairs. What is dropped counts."""
    W = min(case.window or case.T, case.T)
    pairs = case.B * case.T * (W - W * W / (2 * case.T) if case.causal else case.T)
    if case.documents:
        ends = document_ends(case)
        pairs = sum((b - a) ** 2 for a, b in zip([0] + ends, ends)) / 2
    forward = 4e-12 * pairs * case.H * case.D
    return forward * (2.5 if direction == "backward" else 1.0)


# ---- correctness ----


def reference(q, k, v, dout, causal, max_elements=1 << 25, window=0, starts=None, dropout=None):
    """One head in double precision: (T,D) each -> the TENSORS, and what rounding to bf16 may cost each element of all
    but the logsumexp. Rows of scores in chunks of max_elements. dropout(rows, columns): what P is multiplied with.

    A sum of products a_i b_i whose a_i are rounded is off by u sum |a_i b_i| at most, u = ROUNDING, and by u |sum| once
    it is rounded, too (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1): a_i are P and dS. dS also
    has the error of D = rowsum(dO O), which has that of O: of terms of either sign, twice the root of the sum of squares."""
    T, D = q.shape
    q, k, v, dout = (x.double() for x in (q, k, v, dout))
    true, limit = ({name: q.new_zeros(T, D) for name in TENSORS[:4]} for _ in range(2))
    true["lse"], scale, n_rows = q.new_empty(T), D**-0.5, max(1, max_elements // T)
    position = q.new_ones(T).cumsum(0).long() - 1
    for begin in range(0, T, n_rows):
        rows = slice(begin, min(begin + n_rows, T))
        keys = slice(0, rows.stop if causal else T)
        scores = scale * (q[rows] @ k[keys].T)
        if causal:
            after = scores.new_ones(scores.shape).triu(begin + 1).bool()
            scores.masked_fill_(after, float("-inf"))
        if window:
            scores.masked_fill_(scores.new_ones(scores.shape).tril(begin - window).bool(), float("-inf"))
        if starts is not None:
            keys_before = scores.new_ones(scores.shape[1]).cumsum(0) - 1 < starts[rows, None]
            scores.masked_fill_(keys_before, float("-inf"))
        true["lse"][rows] = scores.logsumexp(1)
        p = scores.sub_(true["lse"][rows, None]).exp_()
        factors = dropout(position[rows, None], position[keys]) if dropout else 1
        dropped_p = p * factors
        out = dropped_p @ v[keys]
        ds = (dout[rows] @ v[keys].T).mul_(factors).sub_((dout[rows] * out).sum(1, keepdim=True)).mul_(p)
        true["out"][rows] = out
        true["dq"][rows] = scale * (ds @ k[keys])
        true["dk"][keys] += scale * (ds.T @ q[rows])
        true["dv"][keys] += dropped_p.T @ dout[rows]
        out_limit = ROUNDING * (dropped_p @ v[keys].abs())
        d_limit = 2 * (dout[rows] * (out_limit + ROUNDING * out.abs())).square().sum(1, keepdim=True).sqrt()
        roundings = 1 + (DROPPED_ROUNDINGS - 1) * (factors == 0)
        ds_limit = ds.abs_().mul_(ROUNDING).mul_(roundings).add_(p * d_limit)
        limit["out"][rows] = out_limit
        limit["dq"][rows] = scale * (ds_limit @ k[keys].abs())
        limit["dk"][keys] += scale * (ds_limit.T @ q[rows].abs())
        limit["dv"][keys] += ROUNDING * (dropped_p.T @ dout[rows].abs())
    return true, {name: x + ROUNDING * true[name].abs() for name, x in limit.items()}


def our_dropout(case, b, h):
    """reference()'s dropout with our masks of a head."""
    begin = dropout_masks.matrix_begin(DROPOUT_KEY, DROPOUT_SITE, b * case.H + h)
    scale = dropout_masks.scale(case.dropout)
    return lambda row, column: scale * dropout_masks.kept(*begin, row, column, case.dropout).double()


def sample_heads(case):
    """(b, h) of the heads that are compared with the reference: first, middle, last."""
    return sorted({(0, 0), (case.B // 2, case.H // 2), (case.B - 1, case.H - 1)})


def rms(x):
    return x.square().mean().sqrt().item()


def sizes(references):
    """{tensor: rms over the references, to which errors are relative}; 1 where they vanish (dQ and dK at T = 1)."""
    found = {name: max(rms(true[name]) for true, _ in references.values()) for name in TENSORS}
    return {name: size if size > 1e-12 else 1.0 for name, size in found.items()}


def errors(results, references):
    """{tensor: (rms, max, largest part of an element's that rounding does not explain)} against the references {(b,h):
    reference()}: relative to sizes(references), no less than NOISE, largest over the heads. A NaN stays a NaN."""
    found, size = {}, sizes(references)
    for name in TENSORS:
        if results[name] is None:
            continue
        kinds = [(NOISE,) * 3]
        for (b, h), (true, limit) in references.items():
            difference = (results[name][b, h].double() - true[name]).abs_()
            absolute = rms(difference), difference.max().item(), (difference - limit.get(name, 0)).max().item()
            kinds.append(tuple(error / size[name] for error in absolute))
        found[name] = tuple(worst(values) for values in zip(*kinds))
    return found


def worst(values):
    """The largest; NaN if one is."""
    values = list(values)
    return next((x for x in values if math.isnan(x)), max(values))


def head_differences(results, others, size):
    """{tensor: rms(ours - other) of the head where it is largest, relative to size[tensor]} of the tensors that both
    have."""
    found = {}
    for name in TENSORS:
        if others[name] is not None:
            difference = (results[name].float() - others[name]).square().flatten(2).mean(2)
            found[name] = difference.max().sqrt().item() / size[name]
    return found


def check_bits(torch, ours, state, repeat):
    """True if `repeat` launches into poisoned buffers give the bits that the state holds. The host waits once, at the
    end: the time is that of the launches, 14 B H T^2 D FLOP each (causal: half)."""
    def bits():
        return [x.view(torch.int32) for x in ours.written(state)]

    before = [x.clone() for x in bits()]
    differ = before[0].new_zeros((), dtype=torch.bool)
    for _ in range(repeat):
        ours.poison(state)
        ours.forward(state)
        ours.backward(state)
        for x, y in zip(before, bits()):
            differ |= (x != y).any()
    return not differ.item()


def judge(found, apart, equal):
    """([what failed], {tensor: (rms, max) of the best peer}). found: [errors()], ours first; apart: ours against the first
    peer on all heads, where both may err: ours by its limit, the peer by its own error. Where no peer has a tensor, ours is
    held to what rounding explains.

    The largest error is that of one element, where one rounding up or down of the P or dS of a key that dominates its row
    is most of it. Of kernels that are equally good but round in another order, one passes 2 x the best of the others
    now and then, so an error that rounding explains is none."""
    own, *others = found
    failed, best = [] if equal else ["repeated launches differ in bits"], {}
    for name in own:
        errors_of_peers = [peer[name] for peer in others if name in peer]
        if not errors_of_peers:
            if name != "lse" and not own[name][2] <= NOISE:
                failed.append(f"{name}: largest error {own[name][1]:.2e}, {own[name][2]:.2e} more than rounding explains")
            continue
        best[name] = tuple(min(values) for values in zip(*errors_of_peers))[:2]
        (error, largest, unexplained), (least, least_largest) = own[name], best[name]
        if not error <= 2 * least:
            failed.append(f"{name}: rms error {error:.2e}, at most 2 x {least:.2e}")
        if not (largest <= 2 * least_largest or unexplained <= NOISE):
            failed.append(f"{name}: largest error {largest:.2e}, at most 2 x {least_largest:.2e}, and {unexplained:.2e} more "
                          "than rounding explains")
        if name in apart and not apart[name] <= 2 * least + others[0][name][0]:
            failed.append(f"{name}: a head is {apart[name]:.2e} apart from the peer's, errors {error:.2e} and "
                          f"{others[0][name][0]:.2e}")
    return failed, best


def mean_and_kept(out, plain):
    """Of an output under dropout: its mean, as a multiple of the plain output, and the part of P that was kept. In the mean
    over masks the product of both is the square of the plain one; the square of that under dropout is 1 / kept times as
    large, in the mean over random V."""
    product, square, expected = ((x.float() * y.float()).sum().item() for x, y in ((out, plain), (out, out), (plain, plain)))
    return product / expected, product * product / (square * expected)


def check_dropout(case, named, plain):
    """Checks what must hold whatever the masks. named: {kernel's name: results}; plain: the output without dropout.
    ([what failed], what was found)"""
    failed, found = [], []
    p = dropout_masks.threshold(case.dropout) / 256
    allowed = P_STEP + math.sqrt(p * (1 - p) / (case.B * case.H))
    for name, results in named.items():
        failed += [f"{name}: {tensor} is not finite" for tensor, values in results.items()
                   if values is not None and not values.isfinite().all()]
        mean, part = mean_and_kept(results["out"], plain)
        found.append(f"{name} keeps {part:.4f} of P, mean {mean:.4f}")
        if not (abs(mean - 1) <= allowed and abs(part - (1 - p)) <= allowed):
            failed.append(f"{found[-1]}: expected {1 - p:.4f} and 1, each within {allowed:.3f}")
    return failed, "; ".join(found)


def check_case(torch, case, inputs, states, repeat):
    """Judges the results of the kernels on the first inputs: ([what failed], cells of the long form, of the short, a note)."""
    q, k, v = inputs.qkv.permute(2, 0, 3, 1, 4)
    starts = document_bounds(torch, case, q.device)[0] if case.documents else [None] * case.B
    references = {(b, h): reference(q[b, h], k[b, h], v[b, h], inputs.dout[b, :, h], case.causal, window=case.window,
                                    starts=starts[b], dropout=our_dropout(case, b, h) if case.dropout else None)
                  for b, h in sample_heads(case)}
    named = {kernel.name: kernel.results(state) for kernel, (state, *_) in states.items()}
    plain = named.pop("plain", None)
    other_failed, note = check_dropout(case, named, plain["out"]) if plain else ([], "")
    results = list(named.values())
    if case.dropout:  # the peers' masks are others, and the logsumexp knows of none
        results[1:] = [{**dict.fromkeys(TENSORS), "lse": result["lse"]} for result in results[1:]]
    found = [errors(result, references) for result in results]
    apart = head_differences(results[0], results[1], sizes(references)) if len(results) > 1 else {}
    ours = next(iter(states))
    equal = check_bits(torch, ours, states[ours][0], repeat)
    failed, best = judge(found, apart, equal)
    failed += other_failed
    verdict = ["equal" if equal else "differ", "FAIL" if failed else "ok"]
    ratios = {name: [x / y for x, y in zip(found[0][name], best[name])] for name in best}
    long = [" ".join([f"{found[0][name][0]:.1e}"] + [f"{x:.2f}" for x in ratios.get(name, [])]) for name in TENSORS]
    short = f"{worst(x for pair in ratios.values() for x in pair):.2f}" if "out" in ratios else "-"
    return failed, long + verdict, [short] + verdict, note


# ---- timing ----


class Stopwatch:
    """Times launches on the current stream with CUDA events."""

    def __init__(self, torch, slice_s, rounds):
        self.torch, self.slice_s, self.rounds, self.cold = torch, slice_s, rounds, True

    def _events(self, launch, states, n_groups, group):
        """Milliseconds of one launch, for each of n_groups groups of launches in a row."""
        marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(n_groups + 1)]
        marks[0].record()
        for i, mark in enumerate(marks[1:]):
            for j in range(group):
                launch(states[(i * group + j) % len(states)])
            mark.record()
        marks[-1].synchronize()
        return [a.elapsed_time(b) / group for a, b in zip(marks, marks[1:])]

    def load(self, launch, states, seconds):
        """Keeps the card busy for so long; returns the milliseconds of one launch."""
        ms = statistics.median(self._events(launch, states, 3, 1))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._events(launch, states, 1, max(1, int(50 / ms)))
        return ms

    def warm_up(self, states):
        """Before a row: load of the first kernel; before the first row, too, of all in turns, forward and backward."""
        if self.cold:
            end = time.monotonic() + COLD_S
            while time.monotonic() < end:
                for kernel in states:
                    for launch in (kernel.forward, kernel.backward):
                        self.load(launch, states[kernel], self.slice_s)
        self.cold = False
        first = next(iter(states))
        self.load(first.forward, states[first], WARM_UP_S)

    def slice(self, launch, states, ms, seconds):
        """[ms] of groups of launches over so many seconds, after SETTLE x as long of others. ms: about one launch."""
        group = max(1, round(2 / ms))
        n_groups = max(2, round(1e3 * seconds / (ms * group)))
        n_others = math.ceil(SETTLE * n_groups)
        return self._events(launch, states, n_others + n_groups, group)[n_others:]

    def cell(self, direction, states):
        """{kernel: ([ms], slices)} of kernels that take turns, another one first in every round; 0 slices: the short first
        round alone. The card is at load already."""
        queue = {kernel: getattr(kernel, direction) for kernel in states}
        rough = {kernel: self.load(queue[kernel], states[kernel], 0.02) for kernel in states}
        times = {kernel: self.slice(queue[kernel], states[kernel], rough[kernel], SCOUT_S) for kernel in states}
        ours, *rivals = states
        best = min((statistics.median(times[kernel]) for kernel in rivals if kernel.name not in NO_PEERS), default=math.inf)
        order = [ours] + [kernel for kernel in rivals if statistics.median(times[kernel]) < FAR_BEHIND * best]
        times.update({kernel: [] for kernel in order})
        for turn in range(self.rounds):
            for kernel in order[turn % len(order):] + order[:turn % len(order)]:
                times[kernel] += self.slice(queue[kernel], states[kernel], rough[kernel], self.slice_s)
        return {kernel: (ms, self.rounds if kernel in order else 0) for kernel, ms in times.items()}


# ---- the comparison ----


def make_inputs(torch, case):
    """Sets of qkv (B,T,3,H,D) and dout (B,T,H,D), random normal bf16; more than one where the cache would hold one."""
    generator = torch.Generator("cuda").manual_seed(case.T * case.D + case.causal)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    set_bytes = 8 * case.B * case.T * case.H * case.D
    return [State(qkv=normal(case.B, case.T, 3, case.H, case.D), dout=normal(case.B, case.T, case.H, case.D))
            for _ in range(min(64, -(-COLD_BYTES // set_bytes)))]


def prepare(kernels, case, sets, report):
    """{kernel: [state]} of the kernels that run this case, forward and backward done once for every set."""
    states = {}
    for kernel in kernels:
        try:
            states[kernel] = [kernel.prepare(case, inputs) for inputs in sets]
            for state in states[kernel]:
                kernel.forward(state)
                kernel.backward(state)
        except (RuntimeError, AttributeError) as error:  # of PyTorch: an operator that is missing or does not take this case, or no memory
            states.pop(kernel, None)
            report.note(f"{kernel.name}, T = {case.T}: {str(error).splitlines()[0][:160]}")
    return states


def compare_cell(case, direction, times, names, checked, report):
    """Cells of the table for one direction: TFLOP/s of ours and of each peer, ratio, must; records the CSV rows. checked:
    error, bits and check of the case."""
    speed = {}
    for kernel, (ms, slices) in times.items():
        middle = statistics.median(ms)
        speed[kernel.name] = tflop(case, direction) / (1e-3 * middle)
        report.record(head_size=case.D, mask=mask_name(case), T=case.T, B=case.B, heads=case.H,
                      direction=direction, kernel=kernel.name, ms=f"{middle:.4f}", ms_fastest=f"{min(ms):.4f}",
                      ms_slowest=f"{max(ms):.4f}", tflops=f"{speed[kernel.name]:.1f}", slices=slices,
                      **dict(zip(("error", "bits", "check"), checked)))
    rivals = [speed[name] for name in names if name not in NO_PEERS and speed.get(name)]
    ratio = speed["ours"] / max(rivals) if rivals else None
    cells = [f"{speed['ours']:.0f}"] + [f"{speed[name]:.0f}" if speed.get(name) else "-" for name in names]
    return cells + ([f"{ratio:.3f}", "yes" if ratio >= must_attention(mask_name(case)) else "no"] if ratio else ["-", "-"]), ratio


def compare_case(torch, arguments, kernels, case, report, stopwatch):
    """One row of a table: the checks, then both directions; returns ([what failed], {direction: ratio})."""
    sets = make_inputs(torch, case)
    states = prepare(kernels, case, sets, report)
    if kernels[0] not in states or len(states) < 2:
        report.note(f"T = {case.T}: nothing to compare")
        return [], {}
    failed, long, short = [], [], ["-"] * 3
    if not arguments.no_check:
        failed, long, short, note = check_case(torch, case, sets[0], states, arguments.repeat)
        if note:
            report.note(f"T = {case.T}: {note}")
    if arguments.check:
        report.row([str(case.T), *long])
        return failed, {}
    cells, ratios = [str(case.T), *short], {}
    stopwatch.warm_up(states)
    for direction in arguments.direction:
        times = stopwatch.cell(direction, states)
        names = [kernel.name for kernel in kernels[1:]]
        new_cells, ratios[direction] = compare_cell(case, direction, times, names, short, report)
        cells += new_cells
    report.row(cells)
    return failed, ratios


def headings(arguments, kernels):
    """Of the tables: check only, or short checks and speeds."""
    if arguments.check:
        return ["     T"] + [f"{name:>17s}" for name in TENSORS] + ["  bits", "check"]
    peer_columns = [f"{kernel.name:>6s}" for kernel in kernels[1:]] + ["ratio", "must"]
    return ["     T", "error", "  bits", "check"] + [
        text for direction in arguments.direction for text in [f"{direction:>8s}"] + peer_columns]


def compare_tables(torch, arguments, kernels, report):
    """A table for every head size and mask; returns ([what failed], {cell: ratio})."""
    failed, ratios, stopwatch = [], {}, Stopwatch(torch, arguments.slice, arguments.rounds)
    for D in arguments.head_size:
        for causal in arguments.mask:
            H = arguments.channels // D
            mask = mask_name(Case(1, 1, H, D, causal, arguments.window, arguments.documents, arguments.dropout))
            report.table(f"### Head size {D}, {mask}, {H} heads, B = {arguments.batch_tokens} / T",
                         headings(arguments, kernels))
            for T in arguments.seq:
                case = Case(max(1, arguments.batch_tokens // T), T, H, D, causal, arguments.window, arguments.documents,
                            arguments.dropout)
                case_failed, case_ratios = compare_case(torch, arguments, kernels, case, report, stopwatch)
                torch.cuda.empty_cache()
                failed += [f"head size {D}, {mask}, T = {T}: {text}" for text in case_failed]
                ratios.update({(D, mask, T, d): ratio for d, ratio in case_ratios.items() if ratio})
    return failed, ratios


def summarize(report, kernels, failed, ratios):
    """What the tables say, in a few lines; returns the exit code."""
    report.note("\nerror: ours over the best peer's, against double precision; the worst of output, gradients and logsumexp, of "
                "root mean square and largest; at most 2, the largest more where rounding to bf16 explains it. --check shows "
                "each: rms, then both ratios.")
    if any(kernel.name == "plain" for kernel in kernels):
        report.note("plain: ours without dropout, in turns with ours. Peers draw other masks, so ours is held to what rounding explains, and to "
                    "their error in the logsumexp alone. FA3 has no dropout, and is left out.")
    if ratios:
        report.note("forward, backward: ours, in TFLOP/s (causal counts half). ratio: ours over the best peer. "
                    "FA3 adds dQ by atomics, its default: its last bits change from run to run. The peers leave dQ, dK and dV apart, ours are packed.")
        behind = [f"{direction} {D} {mask} T={T} {ratio:.3f}"
                  for (D, mask, T, direction), ratio in ratios.items() if ratio < must_attention(mask)]
        must = must_attention(next(iter(ratios))[1])  # a run is of masks that have one
        report.note(f"must ({must} x the best peer): {len(ratios) - len(behind)} of {len(ratios)} cells"
                    + (f"; not: {', '.join(behind)}" if behind else ""))
    for text in failed:
        report.note(f"FAIL {text}")
    return EXIT_RUN if failed else 0


# ---- the program ----


def parse_arguments(argv):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-size", type=integers(8, 256, 8), default=[64, 128], metavar="LIST")
    parser.add_argument("--seq", "-T", type=integers(1, 1 << 20), metavar="LIST",
                        help="lengths: 1024,4096 or 1024:32768 (doubling; the default)")
    parser.add_argument("--mask", choices=("causal", "full", "both"), help="default: both; --quick: causal")
    parser.add_argument("--window", type=integer(1, 1 << 20), default=0, metavar="N",
                        help="causal, and a query sees its last N positions; the peers are those that have a window")
    parser.add_argument("--documents", type=integer(1, 1 << 20), default=0, metavar="N",
                        help="causal, of documents of random lengths of mean T / N; the peers are those of a window")
    parser.add_argument("--dropout", type=number(0.01, 0.99), default=0.0, metavar="P",
                        help="causal, with dropout of the probabilities; the peers are cuDNN and FlashAttention-2")
    parser.add_argument("--peers", metavar="LIST", type=lambda text: text.split(","), help="of them: FA3,cuDNN (default: all)")
    parser.add_argument("--direction", choices=("forward", "backward", "both"), default="both", help="what is timed")
    parser.add_argument("--batch-tokens", type=integer(1, 1 << 22), default=65536, metavar="N",
                        help="B is N / T, at least 1 (default 65536)")
    parser.add_argument("--channels", type=integer(8, 1 << 16), default=1536, metavar="N",
                        help="heads x head size (default 1536)")
    parser.add_argument("--repeat", type=integer(1, 100000), default=3, metavar="N",
                        help="launches of ours whose bits must agree (default 3)")
    parser.add_argument("--slice", type=duration(0.01, 10), default=0.25, metavar="S", help="seconds of one timed slice (default 0.25)")
    parser.add_argument("--rounds", type=integer(1, 100), default=3, metavar="N", help="slices of each kernel in a cell (default 3)")
    parser.add_argument("--check", action="store_true", help="check only, time nothing")
    parser.add_argument("--no-check", action="store_true", help="time only: where an earlier run on this card has checked")
    parser.add_argument("--device", type=integer(0, 63), metavar="N", help="the card's number (default: the first that is visible)")
    parser.add_argument("--quick", action="store_true", help="causal, T = 1024, 4096, 16384, unless told otherwise")
    parser.add_argument("--autograd", action="store_true",
                        help="one more column: cuDNN through autograd with packed gradients, as a trainer calls it")
    parser.add_argument("--library", metavar="FILE", help="use this libattention.so and build nothing")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    arguments = parser.parse_args(argv)
    if arguments.check and arguments.no_check:
        parser.error("--check and --no-check: nothing is left to do")
    for size in arguments.head_size:
        if arguments.channels % size:
            parser.error(f"--channels: expected a multiple of the head size {size}, found {arguments.channels}")
    arguments.seq = arguments.seq or ([1024, 4096, 16384] if arguments.quick else [1024 << i for i in range(6)])
    masked = [flag for flag in ("--window", "--documents", "--dropout") if getattr(arguments, flag[2:])]
    if len(masked) > 1:
        parser.error(f"{' and '.join(masked)}: expected one of them")
    if masked and arguments.mask in ("full", "both"):
        parser.error(f"{masked[0]} is causal: expected --mask causal, found {arguments.mask}")
    mask = arguments.mask or ("causal" if arguments.quick or masked else "both")
    arguments.mask = [True, False] if mask == "both" else [mask == "causal"]
    arguments.direction = ["forward", "backward"] if arguments.direction == "both" else [arguments.direction]
    return arguments


def build_library():
    """build/libattention.so, up to date; ends the program with make's words where it cannot be built."""
    target = "build/libattention.so"
    result = subprocess.run(["make", f"-j{os.cpu_count()}", target], cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.stderr.write(result.stderr)
        fail(f"make {target} failed; hint: it needs nvcc; --library FILE takes one that is built", EXIT_RUN)
    return os.path.join(ROOT, target)


def main():
    arguments = parse_arguments(sys.argv[1:])
    report, began = Report(arguments.csv, arguments.markdown), time.monotonic()
    torch = torch_on_card(arguments.device)
    library = arguments.library or build_library()
    ours = Ours(torch, library)
    report.header(environment(torch, commit(os.path.dirname(library))))
    kernels = [ours] + ([Plain(torch, library)] if arguments.dropout else []) + [
        peer for peer in peers(torch, arguments.autograd, arguments.window, arguments.documents, arguments.dropout)
        if not arguments.peers or peer.name in arguments.peers]
    failed, ratios = compare_tables(torch, arguments, kernels, report)
    status = summarize(report, kernels, failed, ratios)
    report.note(f"took {time.monotonic() - began:.0f} s")
    report.close()
    return status


if __name__ == "__main__":
    end_with(main)
