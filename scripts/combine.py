#!/usr/bin/env python3
"""Makes one table of medians from the CSV files of several runs of compare_attention.py or compare_train.py.

    scripts/combine.py attention run1.csv run2.csv run3.csv --csv all.csv --markdown all.md
    scripts/combine.py train card0.csv card1.csv --markdown train.md

attention: every cell is the median over the runs, with the least and the most; a ratio is taken within a run, ours over the
best peer of that run. A cell that a run did not reach has fewer runs, and the table says so. train: every figure is the
median over a configuration's turns; the peer is the fastest of its ways, of the turns in the same runs as ours where it has
some there. Runs of different binaries or versions of the peers are refused.
"""
import argparse
import collections
import math
import statistics

from cases import case_of, flop_of_token
from comparison import Parser, Report, end_with, fail, own_command, split_csv, whole_rows

MUST_ATTENTION = 1.05  # ours is to be at least so many times as fast as the best peer
MUST_DROPOUT = 1.8  # the same with dropout
SAME = ("commit", "torch", "triton", "FA3")  # what runs must have in common to stand in one table
LOSS_APART = 0.25  # of the last losses of two programs: random tokens, so both are near ln(50257)
KERNELS = ("ours", "FA3", "cuDNN", "FA2")
READ = {"attention": ("head_size", "mask", "T", "direction", "kernel", "tflops", "error", "bits", "check"),  # columns of the runs
        "train": ("configuration", "program", "attention", "mode", "flags", "ms", "tok_s", "timed_s", "compile_s", "memory_gib", "device_gib",
                  "loss", "failure")}
NO_PEERS = ("ours", "plain", "packed")  # plain: ours without dropout; packed: cuDNN once more, through autograd
Run = collections.namedtuple("Run", "path header rows")


def read_run(path):
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader, comments = split_csv(file.read())
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path}: cannot be read: {error}")
    header = dict(line[2:].split(": ", 1) for line in comments if ": " in line)
    return Run(path, header, whole_rows(reader))


def read_runs(paths, columns):
    """The runs; ends the program where one lacks a column, or is of other binaries than the first."""
    runs = [read_run(path) for path in paths]
    for run in runs:
        missing = [column for column in columns if not run.rows or column not in run.rows[0]]
        if missing:
            fail(f"{run.path}: expected rows with a column {missing[0]}, found {', '.join(run.rows[0]) if run.rows else 'none'}")
        for name in SAME:
            if run.header.get(name) != runs[0].header.get(name):
                fail(f"{run.path}: {name}: expected {runs[0].header.get(name)}, as {paths[0]} has, found {run.header.get(name)}")
    return runs


def header_of(runs):
    """[(name, text)] of the combined report."""
    cards = sorted({run.header.get("card", "unknown") for run in runs})
    return ([("card", card) for card in cards]
            + [(name, runs[0].header[name]) for name in SAME if name in runs[0].header]
            + [("date", runs[0].header.get("date", "unknown"))]
            + [("run", run.header.get("command", "unknown")) for run in runs]
            + [("command", own_command())])


def spread(values, form):
    """'median (least to most)'."""
    middle = form.format(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({form.format(min(values))} to {form.format(max(values))})"


# ---- attention ----


def must_attention(mask):
    return MUST_DROPOUT if mask.startswith("dropout") else MUST_ATTENTION


def attention_cells(runs):
    """{(head size, mask, T, direction): {kernel: [TFLOP/s of each run], "ratio": [...], "cost": [% of time, of dropout]}} and
    {(..., T): error, bits, check}."""
    cells, checks = {}, {}
    for run in runs:
        speeds = collections.defaultdict(dict)
        for row in run.rows:
            key = int(row["head_size"]), row["mask"], int(row["T"]), row["direction"]
            speeds[key][row["kernel"]] = float(row["tflops"])
            if row["check"] != "-":
                checks[key[:3]] = row["error"], row["bits"], "FAIL" if "FAIL" in (row["check"], *checks.get(key[:3], ())) else row["check"]
        for key, speed in speeds.items():
            rivals = [value for kernel, value in speed.items() if kernel not in NO_PEERS]
            if "ours" not in speed or not rivals:
                continue
            cell = cells.setdefault(key, collections.defaultdict(list))
            for kernel, value in speed.items():
                cell[kernel].append(value)
            cell["ratio"].append(speed["ours"] / max(rivals))
            if "plain" in speed:
                cell["cost"].append(100 * (speed["plain"] / speed["ours"] - 1))
    return cells, checks


def attention_verdict(cells, runs):
    """What the cells say, in sentences."""
    middle = {key: statistics.median(cell["ratio"]) for key, cell in cells.items()}
    held = [key for key in cells if middle[key] >= must_attention(key[1])]
    always = [key for key in cells if min(cells[key]["ratio"]) >= must_attention(key[1])]
    n_cards = len({run.header.get("card") for run in runs})
    fewest = min(len(cell["ratio"]) for cell in cells.values())
    said = [f"{len(runs)} runs on {n_cards} card{'s' if n_cards > 1 else ''}, {fewest} or more of every cell."]
    for must in sorted({must_attention(key[1]) for key in cells}):
        n_all, n_held, n_always = (sum(must_attention(key[1]) == must for key in keys) for keys in (cells, held, always))
        said.append(f"must ({must} x the best peer): by the median {n_held} of {n_all} cells, in every run {n_always}.")
    short = [f"{direction} {size} {mask} T={T} {spread(cells[size, mask, T, direction]['ratio'], '{:.3f}')}"
             for size, mask, T, direction in sorted(set(cells) - set(always))]
    return said + ([f"Not in every run: {'; '.join(short)}."] if short else [])


def combine_attention(runs, report):
    cells, checks = attention_cells(runs)
    if not cells:
        fail(f"{runs[0].path}: no cell has ours and a peer")
    directions = sorted({key[3] for key in cells}, reverse=True)
    drops = any(cell["cost"] for cell in cells.values())
    kernels = KERNELS + ("plain",) * drops
    cost_form = [("cost", "{:.1f}")] * drops
    for size, mask in dict.fromkeys(key[:2] for key in cells):
        for direction in directions:
            report.table(f"### Head size {size}, {mask}, {direction}, TFLOP/s", [f"{'T':>6s}"] + [f"{k:>20s}" for k in kernels] + [
                f"{name + ', %':>20s}" for name, _ in cost_form] + [f"{'ratio':>24s}", "must", "runs", "error", "  bits", "check"])
            for T in sorted(key[2] for key in cells if key[0] == size and key[1] == mask and key[3] == direction):
                cell = cells[size, mask, T, direction]
                record = {"head_size": size, "mask": mask, "T": T, "direction": direction, "runs": len(cell["ratio"])}
                for name, form in [(kernel, "{:.1f}") for kernel in kernels] + cost_form + [("ratio", "{:.4f}")]:
                    for kind, choose in (("", statistics.median), ("_least", min), ("_most", max)):
                        record[name + kind] = form.format(choose(cell[name])) if cell[name] else ""
                report.record(**record)
                report.row([str(T)] + [spread(cell[k], form) if cell[k] else "-" for k, form in [(k, "{:.0f}") for k in kernels] + cost_form] + [
                    spread(cell["ratio"], "{:.3f}"), "yes" if statistics.median(cell["ratio"]) >= must_attention(mask) else "no",
                    str(len(cell["ratio"])), *checks.get((size, mask, T), ("-",) * 3)])
    report.note("Each figure: median over the runs (least to most). ratio: ours over the best peer of the same run. causal counts half, "
                "backward 2.5 times forward. FA3 adds dQ by atomics, its default: its last bits change from run to run. error: ours over the "
                "best peer's, against double precision (compare_attention.py).")
    if drops:
        report.note("plain: ours without dropout, in turns with ours. cost: the time that dropout adds to it. Peers draw other masks, so ours "
                    "is held to what rounding explains, without an error of theirs; FA3 has no dropout.")
    for line in attention_verdict(cells, runs):
        report.note(line)


# ---- training ----

MUST_TRAIN = {  # (tokens/s of ours over PyTorch's at least, GiB of ours over PyTorch's at most)
    "d12:64x1024": (1.20, None), "d12:4x1024": (1.50, None), "d24:32x1024": (1.20, None), "d48:16x1024": (1.15, None),
    "d12:4x16384": (1.30, 0.7), "d12:1x65536": (1.30, 0.7), "d12:1x131072": (1.30, 0.7)}
MUST_TRAIN_DROPOUT = 1.3  # tokens/s of ours over PyTorch's with dropout, of every configuration


def way(row):
    return f"{row['attention']}, {row['mode']}"


def used_gib(row):
    """In use at the most; with CUDA graphs what the allocator held: their pool does not count as in use."""
    graphs = row["mode"] in ("reduce-overhead", "max-autotune")
    return {**row, "used_gib": row["device_gib" if graphs else "memory_gib"]}


def beside_ours(runs):
    """The rows of all runs, but turns of PyTorch apart from ours where the same way has turns beside ours: cards differ."""
    ours = [{row["configuration"] for row in run.rows if row["program"] == "train_gpt2cu" and row["ms"]} for run in runs]
    beside = {(row["configuration"], way(row)) for run, own in zip(runs, ours) for row in run.rows
              if row["program"] == "torch" and row["ms"] and row["configuration"] in own}
    return [row for run, own in zip(runs, ours) for row in run.rows
            if row["configuration"] in own or (row["configuration"], way(row)) not in beside]


def train_rows(rows):
    """{configuration: {"ours": [row of each turn], (attention, mode): [...]}}, of rows that have a time."""
    found = {}
    for row in rows:
        if row["ms"]:
            name = "ours" if row["program"] == "train_gpt2cu" else way(row)
            found.setdefault(row["configuration"], {}).setdefault(name, []).append(used_gib(row))
    return found


def median_of(turns, name):
    return statistics.median(float(turn[name]) for turn in turns)


def memory_of(turns):
    """Of the turns in which it was measured; NaN where it was in none."""
    measured = [turn for turn in turns if not math.isnan(float(turn["used_gib"]))]
    return median_of(measured, "used_gib") if measured else math.nan


def gib_cell(gib):
    return "n/a" if math.isnan(gib) else f"{gib:.1f}"


def best_of(ways):
    """The fastest of PyTorch's ways by the median of its turns, or None."""
    return min((name for name in ways if name != "ours"), key=lambda name: median_of(ways[name], "ms"), default=None)


def best_with(ways, attention):
    return best_of({name: turns for name, turns in ways.items() if name.startswith(f"{attention},")})


def must_train(configuration):
    """(ratio of tokens/s at least, of GiB at most); None: no aim. A name goes on ' dropout P' where it is trained so."""
    name, drops, _ = configuration.partition(" dropout ")
    least, most = MUST_TRAIN.get(name, (None, None))
    return MUST_TRAIN_DROPOUT if drops else least, most


def train_verdict(configuration, speed, memory, apart):
    """Whether the musts are met (n/a: the memory was not measured), and that losses agree."""
    least, most = must_train(configuration)
    wanted = ([f">={least:.2f}"] if least else []) + ([f"<={most:.1f}"] if most else [])
    held = (not least or speed >= least) and not (most and memory > most)
    unknown = held and most and math.isnan(memory)
    cell = " ".join(["n/a" if unknown else "yes" if held else "no", *wanted]) if wanted else "-"
    return cell if apart <= LOSS_APART else f"{cell}, losses {apart:.2f} apart"


def train_summary(configuration, ways):
    """Cells of one configuration: ours, PyTorch's best, the ratios."""
    best = best_of(ways)
    if "ours" not in ways or not best:
        return None
    ours, peer = ways["ours"], ways[best]
    speed = median_of(peer, "ms") / median_of(ours, "ms")
    memory = memory_of(ours), memory_of(peer)
    case = case_of(configuration.partition(" dropout ")[0])
    tflops = 1e-12 * median_of(ours, "tok_s") * flop_of_token(case.model, case.T)
    cells = [configuration, spread([float(x["tok_s"]) for x in ours], "{:,.0f}"), spread([float(x["ms"]) for x in ours], "{:.2f}"),
             f"{tflops:.0f}", spread([float(x["tok_s"]) for x in peer], "{:,.0f}"), best]
    for attention in ("cudnn", "flash3"):
        name = best_with(ways, attention)
        cells.append(f"{median_of(ways[name], 'tok_s'):,.0f}" if name else "-")
    apart = abs(median_of(ours, "loss") - median_of(peer, "loss"))
    return cells + [f"{speed:.2f}", " / ".join(map(gib_cell, memory)),
                    train_verdict(configuration, speed, memory[0] / memory[1], apart), ours[0]["flags"]]


def combine_train(rows, report):
    """The table of configurations, and that of every way that PyTorch was run; returns whether every configuration has both."""
    ways, whole, names = train_rows(rows), True, list(dict.fromkeys(row["configuration"] for row in rows))
    model = "model, B x T".ljust(max([14, *map(len, names)]))
    report.table("### Training, one card, bf16: ours beside PyTorch's fastest way", [
        model, f"{'ours tok/s':>30s}", f"{'ms':>26s}", "TFLOP/s", f"{'PyTorch tok/s':>30s}", f"{'its way':>24s}",
        " cuDNN best", "   FA3 best", "ratio", f"{'GiB':>12s}", f"{'must':>20s}", "flags of ours"])
    for configuration in names:
        cells = train_summary(configuration, ways.get(configuration, {}))
        whole = whole and cells is not None
        report.row(cells or [configuration] + ["-"] * 11)
    report.table("### Every way of PyTorch (attention, mode of torch.compile)", [
        model, f"{'way':>36s}", f"{'tok/s':>30s}", "turns", "timed s", "compile s", "   GiB", " loss", "what failed"])
    for configuration, name in dict.fromkeys((row["configuration"], way(row)) for row in rows if row["program"] == "torch"):
        turns = ways.get(configuration, {}).get(name, [])
        first = next(row for row in rows if row["configuration"] == configuration and row["program"] == "torch" and way(row) == name)
        report.row([configuration, name, spread([float(x["tok_s"]) for x in turns], "{:,.0f}") if turns else "-", str(len(turns)),
                    f"{sum(float(x['timed_s']) for x in turns):.0f}", first["compile_s"] or "-",
                    gib_cell(memory_of(turns)) if turns else "-", turns[-1]["loss"] if turns else "-", first["failure"]])
    report.note("Medians over turns (least to most), each turn about 5 s under load after 1 s that is not timed. PyTorch's fastest way of the "
                "first turns takes the others in turns with ours. TFLOP/s: 6 FLOP a token and weight of the matrix products, and causal "
                "attention; no embedding, no biases. GiB: peak; for ours all that it took of the device, for PyTorch what was in use, "
                "with CUDA graphs (reduce-overhead, max-autotune) what it held. cudnn: cuDNN's attention; flash3: "
                "FlashAttention-3 as an operator of its own, packed gradients. loss: the last one; weights differ, tokens are random.")
    if any(" dropout " in name for name in names):
        report.note("dropout P: in both programs, of the embedding, attention's probabilities and the output of attention and MLP; ours in steps "
                    "of 1/256. flash: FlashAttention-2, as FlashAttention-3 has no dropout.")
    return whole


# ---- the program ----


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("attention", "train"))
    parser.add_argument("runs", nargs="+", metavar="RUN.csv")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    arguments = parser.parse_args()
    runs = read_runs(arguments.runs, READ[arguments.kind])
    report = Report(arguments.csv, arguments.markdown)
    report.header(header_of(runs))
    if arguments.kind == "attention":
        combine_attention(runs, report)
    else:
        rows = beside_ours(runs)
        for row in rows:
            report.record(**row)
        combine_train(rows, report)
    report.close()


if __name__ == "__main__":
    end_with(main)
