#!/usr/bin/env python3
"""The ten tables of the ladder, and one of the other ops: runs the lab, writes CSV, Markdown and a plot for each under dev/results/CARD/.

  make tables                       all of them, on the card at hand; under three minutes on an H200
  dev/tables.py [NAME...] [--quick] some of them; dev/tables.py --list names them
  dev/tables.py [NAME...] --redraw  Markdown and plots again, from the CSV files that are there

Needs dev/lab (make dev/lab), and for the trainer's table train_gpt2cu; plots need matplotlib, bytes measured need ncu, PyTorch's
rows need torch: what is missing is said and left out. A machine without a GPU makes the CPU's rows. Ends with the number of
failed commands; exit code 1 if any, 2 on bad usage.
"""
import glob
import os
import sys
import time

from table_output import card_name, DamagedCsv, Section, Table, write_csv, write_page
from table_sources import LAB, Run, bad_usage, framework_rows, lab, profiled, python_rows, trainer_rows, walkthrough_rows
from comparison import end_with  # scripts/comparison.py, which those two have put on the path

RESULTS = "dev/results"
FORWARD, BACKWARD, BOTH = "attention_forward", "attention_backward", "attention_forward,attention_backward"
GPT2 = ["--head-size", "64", "--causal", "1"]
FEW_TOKENS = ["--batch-tokens", "16384"]  # for rows of a few TFLOP/s
FAST, SLOW = ["--seconds", "0.1"], ["--seconds", "0.04", "--longest", "0.5"]


# ---- values and rows ----


def op_is(op, *others):
    """Timed rows of an op for which all the others hold, too."""
    return lambda row: row.get("op") == op and row["kind"] != "check" and all(other(row) for other in others)


def variant_is(*names):
    return lambda row: row["variant"] in names


def no(condition):
    return lambda row: not condition(row)


def field_is(name, *values):
    return lambda row: row.get(name) in values


def intensity(row, mbytes="mbytes_variant"):
    """FLOP a byte."""
    return float(row["gflop_variant"]) * 1e3 / float(row[mbytes]) if row.get(mbytes) else None


def measured_intensity(row):
    return intensity(row, "mbytes_measured")


def ns_a_token(row):
    """Of one head."""
    return float(row["ms"]) * 1e6 / (int(row["B"]) * int(row["T"]) * int(row["NH"])) if row.get("ms") else None


def gbytes(row):
    return float(row["mbytes_variant"]) / 1e3


def mbytes_kept(row):
    """Scratch, O and L: what there is beside q, k and v."""
    rows = int(row["B"]) * int(row["T"]) * int(row["NH"])
    return float(row["scratch_mbytes"]) + rows * (int(row["DV"]) * (2 if row["dtype"] == "bf16" else 4) + 4) / 1e6


def forward_and_backward(rows):
    """A row for each variant that has both: the sums."""
    sums = []
    for row in rows:
        for other in rows:
            if (row["op"], other["op"]) == (FORWARD, BACKWARD) and row["variant"] == other["variant"]:
                total = {name: f"{float(row[name]) + float(other[name]):.6g}" for name in ("ms", "gflop_variant", "mbytes_variant")}
                sums.append({**row, "op": "forward and backward", "spread": "", "tflops": "", "percent_of_roof": "", **total})
    return sums


MS_AND_COST = {"ms": "ms", "GFLOP": "gflop_variant", "GB": gbytes}
TILES = ["flash2_64x4", "flash2_128x4", "flash2_128x8", "flash2_256x8", "flash2_by_length"]
IS_TILES = variant_is("flash2_tiles", *TILES)
LADDER = "standard,naive_fused,flash1,flash2,online,scalar_online,generic"
OLD_SM90 = "hopper"  # the row sm90 in results that were recorded before it had that name; --redraw reads them
TINY = ["--head-size", "16", "--channels", "16", "--batch-tokens", "1", *SLOW]

OPS = ["linear_forward", "layernorm_forward", "layernorm_backward", "cross_entropy_forward", "cross_entropy_backward", "gelu_forward",
       "gelu_backward", "embedding_backward", "grad_norm", "adamw"]
RUNGS = ("naive,tiled,registers,mma,wgmma,cublaslt,row_a_thread,row_a_warp,atomics,columns,partials,passes,online,fused,scalar,"
         "sorted_columns,runs,block_atomics,two_stage,per_tensor,one_launch,vectorised,cuda")

# ---- the tables ----

TABLES = [
    Table(
        1, "full_stack", "Full stack: one head of size 16, forward",
        "N = 8 to 64, ms: pure Python with autograd nodes 0.209 to 1.551, pure Python 0.018 to 0.100, C 0.001 to 0.063, a framework on "
        "a GPU 0.054, fused on a GPU 0.025",
        [
            python_rows,
            lab(FORWARD, "textbook,scalar_online_fp32,flash2_fp32,flash_decoding_fp32", "8:64", *TINY, "--causal", "0", "--queries", "1"),
            lab(FORWARD, "textbook,cpu,standard_fp32,scalar_online_fp32,flash2_fp32,generic_fp32,generic", "8:64", *TINY, "--causal", "1"),
            lab(BACKWARD, "autograd_graph", "8:64", *TINY, "--causal", "0", "--queries", "1"),
            framework_rows,
        ],
        [
            Section("One query against N keys (autograd_graph: with backward)", {"ms": "ms"}, field_is("T", "1"), x_label="N"),
            Section("N queries, N keys", {"ms": "ms"}, no(field_is("T", "1")), x_label="N"),
        ],
    ),
    Table(
        2, "speed_memory", "Speed and intermediate memory: one head of size 64, forward, causal",
        "N = 1024, 2048, 4096: standard 0.081, 0.258, 1.668 ms with 8, 32, 128 MB; fused 0.039, 0.158, 0.462 ms with 0.25, 0.5, 1 MB: "
        "saving 32x, 64x, 128x",
        [lab(FORWARD, "standard_fp32,flash2_fp32,standard,flash2,sm80,sm90", "1024:4096", *GPT2, "--channels", "64", "--batch-tokens", "1",
             *FAST)],
        [
            Section("Time", {"ms": "ms"}),
            Section("Memory", {"MB of scratch, O and L": mbytes_kept, "MB of scratch": "scratch_mbytes"}),
        ],
    ),
    Table(
        3, "lite_online", "Lite against Online: head size 64, normal inputs, not causal",
        "largest error at N = 64 to 1024: Lite 0.002, 0.761, 1.292, 2.287, 3.491; Online at most 0.003",
        [lab(FORWARD, "lite,lite_fp32,online,online_fp32", "64:1024", "--check", "--fill", "normal", "--head-size", "64", "--causal", "0")],
        [Section("Largest error against double precision", {"largest error": "largest"})],
    ),
    Table(
        4, "intensity", "Arithmetic intensity: FLOP a byte of device memory, 24 heads of 64, 16,384 tokens, forward, causal",
        "N = 1024, 4096: standard 15.4, 16.1; fused 261, 1044",
        [profiled(FORWARD, "standard_fp32," + LADDER + ",sm80,sm90", "1024,4096", *GPT2, *FEW_TOKENS)],
        [
            Section("Counted by the formula of each variant", {"FLOP a byte": intensity, "MB": "mbytes_variant", "GFLOP": "gflop_variant"}),
            Section("Measured (ncu, dram bytes)", {"FLOP a byte": measured_intensity, "MB": "mbytes_measured"}),
        ],
    ),
    Table(
        5, "backward_medium", "Backward at GPT-2 medium's shape: 64 x 1024 tokens, 16 heads of 64, causal",
        "forward and backward: standard 66.6 GFLOP, 40.3 GB, 41.7 ms; recompute 75.2 GFLOP, 4.4 GB, 7.3 ms",
        [lab(BOTH, "standard,flash1,flash2,generic,sm80,sm90_two_pass,sm90", "1024", *GPT2, "--channels", "1024", *FAST)],
        [
            Section("Forward and backward", MS_AND_COST, op_is("forward and backward")),
            Section("Backward", {**MS_AND_COST, "TFLOP/s": "tflops"}, op_is(BACKWARD)),
            Section("Forward", {**MS_AND_COST, "TFLOP/s": "tflops"}, op_is(FORWARD), plotted=False),
        ],
        forward_and_backward,
    ),
    Table(
        6, "memory", "Memory against sequence length, forward, causal",
        "whole models, B = 1, H = 16, d = 64, N = 1024 to 8192: standard 1.2, 4.8, 19.2, 76.8 GB, flash 0.4, 0.8, 1.6, 3.2 GB. B = 32, "
        "H = 16, d = 128, N = 8192: standard 10.2 GB, flash 0.8 GB; speed 1x, 2.3x, 8.7x; error in fp32 below 1e-5",
        [
            lab(FORWARD, "standard,standard_fp32,flash1,flash2,sm80,sm90", "1024:8192", *GPT2, "--channels", "1024", "--batch-tokens", "1",
                *SLOW),
            lab(FORWARD, "standard,flash2,sm80,sm90", "8192", "--head-size", "128", "--causal", "1", "--channels", "2048", "--batch-tokens",
                "262144", "--seconds", "0.1", "--longest", "4"),
            lab(FORWARD, "standard_fp32,flash1_fp32,flash2_fp32,online_fp32,generic_fp32", "8192", "--check", "--fill", "normal",
                "--head-size", "128", "--causal", "1"),
        ],
        [
            Section("One sequence, 16 heads of 64", {"MB of scratch, O and L": mbytes_kept, "MB of scratch": "scratch_mbytes", "ms": "ms"},
                    op_is(FORWARD, field_is("HD", "64"))),
            Section("32 sequences of 8192, 16 heads of 128", {"ms": "ms", "MB of scratch, O and L": mbytes_kept, "TFLOP/s": "tflops"},
                    op_is(FORWARD, field_is("HD", "128"))),
            Section("Error in fp32, 2 heads of 128", {"largest error": "largest", "relative error": "error"}, field_is("kind", "check"),
                    plotted=False),
        ],
    ),
    Table(
        7, "trainer", "The trainer end to end: GPT-2 124M, one sequence, by context length",
        "inference, tokens/s at 1024, 2048, 4096: standard 1250, 480, 120; flash 2850, 1850, 850",
        [
            trainer_rows([1024, 2048, 4096], ["flash", "standard"], 16),
            lab(FORWARD, "flash_decoding,flash2,scalar_online", "1024:65536", "--head-size", "64", "--causal", "0", "--queries", "1",
                "--channels", "768", "--batch-tokens", "1", *SLOW),
        ],
        [
            Section("Training", {"tokens/s": "tokens_per_second", "GiB": "measured_gib", "ms a step": "ms"}, field_is("kind", "train")),
            Section("Forward alone (validation)", {"tokens/s": "forward_tokens_per_second"}, field_is("kind", "train")),
            Section("Sampling, one token at a time, the context full", {"tokens/s": "sample_tokens_per_second"},
                    lambda row: bool(row.get("sample_tokens_per_second"))),
            Section("One query against a cache, 12 heads of 64", {"ms": "ms"}, op_is(FORWARD)),
        ],
    ),
    Table(
        8, "lengths", "Time against T, causal: 24 heads of 64 (cpu: 12 heads, all cores; textbook: 1 head, one thread)",
        "none",
        [
            lab(BOTH, "cpu", "128:131072", *GPT2, *SLOW),
            lab(FORWARD, "textbook", "128:4096", *GPT2, "--batch-tokens", "1", "--channels", "64", *SLOW),
            lab(BOTH, LADDER, "128:131072", *GPT2, *FEW_TOKENS, *SLOW),
            lab(BOTH, "sm80,sm90_two_pass,sm90", "128:131072", *GPT2, *FAST),
            lab(FORWARD, ",".join(TILES), "1024:8192", *GPT2, *FEW_TOKENS, *SLOW),
        ],
        [
            Section("Forward", {"TFLOP/s": "tflops", "ns a token and head": ns_a_token}, op_is(FORWARD, no(IS_TILES)), roofs=True),
            Section("Backward", {"TFLOP/s": "tflops", "ns a token and head": ns_a_token}, op_is(BACKWARD), roofs=True),
            Section("Tiles of FlashAttention-2 on ordinary cores: queries x warps", {"TFLOP/s": "tflops"}, op_is(FORWARD, IS_TILES), log=False),
        ],
    ),
    Table(
        9, "masks", "Block-sparse, window and dropout: 24 heads of 64, causal",
        "none",
        [lab(BOTH, "flash2", "1024:16384", *GPT2, *FEW_TOKENS, *SLOW, *mask) for mask in ((), ("--sparse",), ("--dropout",))]
        + [lab(BOTH, "sm80,sm90,sm80_masked", "1024:16384", *GPT2, *SLOW)]
        + [lab(BOTH, "masked,sm80_masked", "1024:16384", *GPT2, *SLOW, *mask) for mask in (("--dropout",), ("--window", "1024"))],
        [
            Section(f"{title}, {op[10:]}", {"ms": "ms", **more}, op_is(op, variant_is(*names), *where))
            for title, more, names, where in (
                ("The ladder's kernel, 16,384 tokens: dense, sparse, dropout", {"density": "density"}, ["flash2"], ()),
                ("The trainer's kernels, 65,536 tokens: --dropout 0.1, --window 1024", {}, ["sm80", "sm90", OLD_SM90, "sm80_masked", "masked"], ()))
            for op in (FORWARD, BACKWARD)
        ],
    ),
    Table(
        10, "walkthrough", "The online update of m, l and o by hand: n = 4, d = 2, two keys at a time",
        "a printed walk-through that ends equal to the plain softmax",
        [walkthrough_rows],
        [Section("o / l after so many keys", {"value": "value"}, x="keys", x_label="keys", log=False)],
    ),
    Table(
        11, "ops", "The ladders of the other ops: a step of GPT-2 124M, 64 x 1024 tokens, bf16",
        "none; predictions are in each op's page",
        [lab(",".join(OPS), RUNGS, "", "--seconds", "0.06", "--longest", "0.3")],
        [
            Section(op + (" (qkv)" if op == "linear_forward" else ""), {"ms": "ms", "GB/s": "gbytes_per_s", "% of the roof": "percent_of_roof"},
                    op_is(op, field_is("what", "", "qkv")), x="N", x_label="N")
            for op in OPS
        ],
    ),
]


def make(table, run):
    """Writes the table's three files, unless one of its commands failed: then those that are there stay."""
    begun, rows, comments, failed = time.monotonic(), [], [], run.failed
    for source in table.sources:
        more, lines = source(run)
        rows += more
        dated = any(line.startswith("# date ") for line in comments)
        comments += [line for line in lines if line not in comments and not (dated and line.startswith("# date "))]
    if run.failed > failed:
        print(f"skip {table.name}: a command of it failed; its files stay as they are")
        return
    rows += table.derive(rows)
    if not rows:
        print(f"skip {table.name}: none of its rows runs on this machine")
        return
    folder = os.path.join(RESULTS, card_name(comments))
    os.makedirs(folder, exist_ok=True)
    write_csv(os.path.join(folder, table.name + ".csv"), rows, comments)
    write_page(table, folder)
    print(f"{folder}/{table.name}.md: {len(rows)} rows, {time.monotonic() - begun:.0f} s", flush=True)


def redraw(tables):
    found = [(table, path) for table in tables for path in sorted(glob.glob(f"{RESULTS}/*/{table.name}.csv"))]
    for table, path in found:
        print(f"{path}: {write_page(table, os.path.dirname(path))} rows")
    return 0 if found else bad_usage(f"--redraw: {RESULTS}/*/ has no CSV of {' '.join(table.name for table in tables)}")


def run_tables(tables, quick):
    if not os.access(LAB, os.X_OK):
        return bad_usage(f"{LAB} is not built; hint: make dev/lab")
    run = Run(quick)
    for table in tables:
        make(table, run)
    print(f"{run.failed} failed")
    return 1 if run.failed else 0


def main():
    words = sys.argv[1:]
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
    if "--help" in words or "-h" in words:
        print(__doc__.strip())
        return 0
    names = [word for word in words if not word.startswith("-")]
    known = [table.name for table in TABLES]
    if "--list" in words:
        print("\n".join(f"{table.number:2d} {table.name:16} {table.title}" for table in TABLES))
        return 0
    wrong = [n for n in names if n not in known] + [w for w in words if w.startswith("-") and w not in ("--quick", "--redraw")]
    if wrong:
        return bad_usage(f"unknown: {' '.join(wrong)}; known: {' '.join(known)} --quick --redraw --list")
    tables = [table for table in TABLES if not names or table.name in names]
    try:
        os.makedirs(RESULTS, exist_ok=True)
        return redraw(tables) if "--redraw" in words else run_tables(tables, "--quick" in words)
    except OSError as error:
        return bad_usage(f"{error.filename or RESULTS}: {error.strerror}")
    except DamagedCsv as error:
        return bad_usage(str(error))


if __name__ == "__main__":
    end_with(main)
