"""scripts/compare_train.py, random_shard.py, with stand-ins for both trainers."""
import argparse
import array
import csv
import math
import os
import subprocess
import sys
import types

from parts import SCRIPTS, Parts

import cases
import combine
import compare_train
import random_shard

D12 = compare_train.CONFIGURATIONS[0]
TOKENS = 64 * 1024

# A stand-in for ./train_gpt2cu: notes its words, writes a log of four steps, says its memory.
OURS = """#!/bin/sh
[ "$1" != --version ] || { echo 'train_gpt2 0123abc'; exit; }
printf '%s\\n' "$@" >>"${0%/*}/words"
while [ $# -gt 0 ]; do [ "$1" = --out ] && out=$2; shift; done
mkdir -p "$out"
for step in 1 2 3 4; do
    echo "{\\"step\\": $step, \\"loss\\": $step.5, \\"ms\\": ${step}00, \\"mfu\\": 0.$step}"
done >"$out/log.jsonl"
echo 'memory: planned 1.0 GiB, measured 2.5 GiB'
"""
# A stand-in for scripts/torch_gpt2.py: takes 200 ms a step with cuDNN, 150 with FlashAttention-3, 10 less with graphs.
PEER = """
import json, sys
way = sys.stdin.readline().split()
if way:
    print(json.dumps({"compiled_s": 12.0, "step_s": 0.1}), flush=True)
ms = (200 if way[:1] == ["cudnn"] else 150) - 10 * (way[1:] == ["reduce-overhead"])
for i, line in enumerate(sys.stdin):
    print(json.dumps({"steps": 10, "seconds": 0.01 * ms, "loss": 4.4 + i, "memory": (4 + i) << 30, "reserved": 6 << 30,
                      "ms_median": 0}), flush=True)
"""


def arguments(**more):
    return types.SimpleNamespace(**{"flags": None, "seconds": 4.0, "turns": 3, "ways": None, "limit": 300, "no_new_after": None,
                                    "program": "./train_gpt2cu", **more})


class Configurations(Parts):
    def test_the_list(self):
        default, graph, tuned = [("cudnn", "default"), ("flash3", "default")], ("best", "reduce-overhead"), ("best", "max-autotune")
        plain = [("best", "max-autotune-no-cudagraphs")]
        self.assertEqual([(compare_train.name_of(c), c.ways, c.flags) for c in compare_train.CONFIGURATIONS], [
            ("d12:64x1024", default + [graph, tuned], ""),
            ("d12:4x1024", default + [("cudnn", "reduce-overhead"), ("flash3", "reduce-overhead"), tuned], ""),
            ("d24:32x1024", default + plain, ""), ("d48:16x1024", default + plain, ""),
            ("d12:4x16384", default + [tuned], "--recompute gelu"), ("d12:1x65536", default + [tuned], "--recompute gelu"),
            ("d12:1x131072", default, "--recompute gelu")])

    def test_only(self):
        found = compare_train.parse_arguments(["--only", "d12:64x1024,d36:2x512"]).only
        self.assertEqual(found[0], D12)
        self.assertEqual(tuple(found[1]), ("d36", 2, 512, compare_train.DEFAULT, "", 0, 0.0))
        for text in ("d12", "d13:1x1", "d12:0x1024", "d12:1x0", "d12:1x1024,", "d12:1xa"):
            self.refused("expected MODEL:BxT", 2, compare_train.parse_arguments, ["--only", text])

    def test_ways(self):
        found = compare_train.parse_arguments(["--ways", "flash3/max-autotune,cudnn/default"])
        self.assertEqual(found.ways, [("flash3", "max-autotune"), ("cudnn", "default")])
        for text in ("cudnn", "cudnn/fast", "x/default", "cudnn/default,", ""):
            self.refused("expected ATTENTION/MODE", 2, compare_train.parse_arguments, ["--ways", text])

    def test_flags(self):
        gelu = compare_train.CONFIGURATIONS[4]
        self.assertEqual(compare_train.flags_of(gelu, arguments()), ["--recompute", "gelu"])
        self.assertEqual(compare_train.flags_of(gelu, arguments(flags=[])), [])
        self.assertEqual(compare_train.flags_of(D12, arguments(flags=["--graph", "off"])), ["--graph", "off"])
        self.assertEqual(compare_train.words("--a 'b c'"), ["--a", "b c"])
        with self.assertRaises(argparse.ArgumentTypeError):
            compare_train.words("--a 'b")

    def test_dropout(self):
        """Of every configuration; flash takes the place of flash3."""
        cudnn, flash, best = ("cudnn", "default"), ("flash", "default"), [("best", mode) for mode in compare_train.MODES]
        found = compare_train.parse_arguments(["--dropout", "0.1"])
        self.assertEqual([(c.dropout, c.ways) for c in found.only], [
            (0.1, ways) for ways in ([cudnn, flash, best[1], best[2]],
                                     [cudnn, flash, ("cudnn", "reduce-overhead"), ("flash", "reduce-overhead"), best[2]], [cudnn, flash, best[3]],
                                     [cudnn, flash, best[3]], [cudnn, flash, best[2]], [cudnn, flash, best[2]], [cudnn, flash])])
        self.assertEqual((found.only[4].flags, found.ways, compare_train.row_name(found.only[4])), ("--recompute gelu", None, "d12:4x16384 dropout 0.1"))
        self.assertEqual(D12.ways[1], ("flash3", "default"), "the list stays as it is")
        found = compare_train.parse_arguments(["--dropout", "0.25", "--only", "d36:2x512", "--ways", "flash3/default,flash/default,cudnn/default"])
        self.assertEqual((compare_train.row_name(found.only[0]), found.ways), ("d36:2x512 dropout 0.25", [("flash", "default"), cudnn]))
        self.refused("--ways: flash3 has no dropout", 2, compare_train.parse_arguments, ["--dropout", "0.1", "--ways", "flash3/default"])
        for p in ("1", "-0.1", "x", "nan"):
            self.refused("--dropout: expected a number from 0 to 0.99", 2, compare_train.parse_arguments, ["--dropout=" + p])
        found = compare_train.parse_arguments(["--dropout", "0", "--ways", "flash3/default"])
        self.assertEqual((found.only, found.ways), (compare_train.CONFIGURATIONS, [("flash3", "default")]), "0: none")

    def test_defaults(self):
        parsed = compare_train.parse_arguments([])
        self.assertEqual((parsed.only, parsed.seconds, parsed.turns, parsed.train, parsed.flags, parsed.ways, parsed.limit, parsed.program),
                         (compare_train.CONFIGURATIONS, 5.0, 3, None, None, None, 420, "./train_gpt2cu"))

    def test_a_shard(self):
        good = self.file("good.bin", array.array("i", [20240520, 1, 0]).tobytes())
        self.assertEqual(self.said(random_shard.check, good)[3], None)
        for name, words in (("version", [20240520, 2]), ("magic", [20240521, 1]), ("short", [20240520]), ("empty", [])):
            path = self.file(name, array.array("i", words).tobytes())
            self.refused(f"--train {path}: expected a token shard", 2, random_shard.check, path)
        self.refused("cannot be read", 2, random_shard.check, self.path("none"))


class Counts(Parts):
    def test_steps_by_the_last_turn(self):
        self.assertEqual(compare_train.n_steps(D12, 4.0, [{"ms": 7.0}, {"ms": 125.0}]), 1 + 8 + 32, "the first, a second, four seconds")
        self.assertEqual(compare_train.n_steps(D12, 4.01, [{"ms": 125.0}]), 1 + 8 + 33)
        self.assertEqual(compare_train.n_steps(D12, 4.0, [{"ms": 9000.0}]), 1 + 1 + 4)

    def test_steps_of_the_first_turn(self):
        weights = 12 * 12 * 768**2 + 50257 * 768
        flop = 6 * TOKENS * (weights + 12 * 768 * 1024)
        step = flop / 620e12
        self.assertEqual(compare_train.n_steps(D12, 11, []), 1 + math.ceil(1 / step) + math.ceil(11 / step))

    def steps(self, times):
        return [{"step": i, "loss": float(i), "ms": ms, "mfu": 0.1 * i} for i, ms in enumerate(times, 1)]

    def test_the_first_step_and_a_second_of_warm_up_do_not_count(self):
        found = compare_train.timing_of(self.steps([9000, 400, 400, 400, 100, 200, 300]))
        self.assertAlmostEqual(found.pop("mfu"), 0.55)
        self.assertEqual(found, {"ms": 200.0, "seconds": 0.6, "loss": 7.0})

    def test_the_last_two_steps_always_count(self):
        self.assertEqual(compare_train.timing_of(self.steps([50, 60, 70, 90]))["ms"], 80.0)


class Peer(Parts):
    def torch(self, text, limit_s=300, configuration=D12):
        self.replace(compare_train, "PEER", self.file("peer.py", text))
        torch = compare_train.Torch(configuration, "a shard", limit_s)
        self.addCleanup(torch.errors.close)
        self.addCleanup(torch.process.communicate)
        self.addCleanup(torch.close)
        return torch

    def test_turns(self):
        torch = self.torch(PEER)
        torch.compile(("flash3", "reduce-overhead"))
        self.assertEqual((torch.compiled_s, torch.failure, torch.way), (12.0, "", ("flash3", "reduce-overhead")))
        first = {"ms": 140.0, "seconds": 1.4000000000000001, "loss": 4.4, "memory": 4.0, "device_memory": 6.0}
        for name, value in torch.turn(2.0).items():
            self.assertAlmostEqual(value, first[name])
        self.assertEqual(torch.turn(3.0)["memory"], 5.0)
        self.assertEqual(len(torch.turns), 2)
        torch.close()
        self.assertIsNotNone(torch.process.poll())

    def test_what_it_is_called_with(self):
        for dropout, more in ((0.0, []), (0.1, ["--dropout", "0.1"])):
            torch = self.torch("import json, sys; print(json.dumps(sys.argv[1:] + [sys.stdin.readline()]), flush=True)",
                               configuration=D12._replace(dropout=dropout))
            self.assertEqual(torch.ask("flash default"), ["--model", "d12", "--batch", "64", "--seq", "1024", "--tokens", "a shard", *more,
                                                          "flash default\n"])

    def test_a_failure_is_its_last_word(self):
        torch = self.torch("import sys; sys.stdin.readline(); sys.exit('one\\nCUDA Error: no memory\\nmore')")
        torch.compile(("cudnn", "default"))
        self.assertEqual((torch.failure, torch.turn(1)), ("CUDA Error: no memory", None))
        self.assertTrue(math.isnan(torch.compiled_s))
        torch = self.torch("import sys; sys.stdin.readline(); sys.exit('torch.AcceleratorError: out of memory\\nerrors come later')")
        torch.compile(("cudnn", "default"))
        self.assertEqual(torch.failure, "torch.AcceleratorError: out of memory", "an exception says more than other lines")
        torch = self.torch("import sys; sys.exit(3)")
        torch.compile(("cudnn", "default"))
        self.assertEqual(torch.failure, "ended with status 3")

    def test_one_that_hangs_is_stopped(self):
        torch = self.torch("import time; time.sleep(600)", 0.2)
        torch.compile(("cudnn", "default"))
        self.assertEqual(torch.failure, "stopped after 0 s")

    def test_processes_are_started_a_little_ahead(self):
        started = []

        class Started:
            def __init__(self, configuration, shard, limit_s):
                self.configuration, self.open = configuration, True
                started.append(self)

            def close(self):
                self.open = False

        self.replace(compare_train, "Torch", Started)
        ahead = compare_train.Ahead("abcde", "shard", 1)
        self.assertEqual((ahead.next().configuration, len(started)), ("a", 3))
        self.assertEqual((ahead.next().configuration, len(started)), ("b", 4))
        ahead.close()
        self.assertEqual([torch.configuration for torch in started if torch.open], ["a", "b"])


class Ours(Parts):
    def run_ours(self, text, configuration=D12, **more):
        return compare_train.run_ours(configuration, "a shard", arguments(program=self.program("train_gpt2cu", text), **more), self.folder, 7)

    def test_a_run(self):
        found, failure = self.run_ours(OURS, compare_train.CONFIGURATIONS[4])
        self.assertEqual(failure, "")
        self.assertAlmostEqual(found.pop("mfu"), 0.35)
        self.assertEqual(found, {"ms": 350.0, "seconds": 0.7, "loss": 4.5, "memory": 2.5, "device_memory": 2.5})
        words = self.text("words").split("\n")[:-1]
        self.assertEqual(words, ["--model", "d12", "--train", "a shard", "--batch", "4", "--seq", "16384", "--tokens-per-step", "65536",
                                 "--steps", "7", "--optimizer", "adamw", "--sample-tokens", "0", "--eval-every", "0", "--out", self.path("run"), "--model-only",
                                 "--recompute", "gelu"])
        self.assertFalse(os.path.exists(self.path("run")), "the run's folder is removed")

    def test_dropout(self):
        self.run_ours(OURS, compare_train.CONFIGURATIONS[4]._replace(dropout=0.1))
        self.assertEqual(self.text("words").split("\n")[-6:], ["--model-only", "--dropout", "0.1", "--recompute", "gelu", ""])

    def test_failures(self):
        self.assertEqual(self.run_ours("#!/bin/sh\necho one >&2\necho 'error: two' >&2\nexit 1\n"), (None, "error: two"))
        self.assertEqual(self.run_ours("#!/bin/sh\nexit 3\n"), (None, "ended with status 3"))
        self.replace(compare_train, "OURS_LIMIT_S", 0.2)
        self.assertEqual(self.run_ours("#!/bin/sh\nexec sleep 600\n"), (None, "stopped after 0.2 s"))


class Comparison(Parts):
    def compare(self, ours=OURS, peer=PEER, configuration=D12, **more):
        """(rows of the CSV, the words of ours)"""
        args = arguments(program=self.program("train_gpt2cu", ours), **more)
        self.replace(compare_train, "PEER", self.file("peer.py", peer))
        report = compare_train.Report(self.path("x.csv"), None)
        turns = compare_train.Turns(report)

        def run():
            ahead = compare_train.Ahead([configuration] * len(args.ways or configuration.ways), "a shard", args.limit)
            compare_train.compare(configuration, ahead, "a shard", args, self.folder, turns)
            ahead.close()
            report.close()

        self.said(run)
        return turns.rows, self.text("words").split("\n") if os.path.exists(self.path("words")) else []

    def of(self, rows, *names):
        return [tuple(row[name] for name in names) for row in rows]

    def test_each_way_has_a_turn_and_the_fastest_one_goes_on(self):
        closed = []
        close = compare_train.Torch.close
        self.replace(compare_train.Torch, "close", lambda torch: closed.append((torch.way, len(torch.turns))) or close(torch))
        rows, words = self.compare(configuration=compare_train.CONFIGURATIONS[1])
        self.assertEqual(closed, [(("cudnn", "default"), 1), (("cudnn", "reduce-overhead"), 1), (("flash3", "default"), 1),
                                  (("flash3", "max-autotune"), 1), (("flash3", "reduce-overhead"), 3)], "slower ways end at once")
        self.assertEqual(self.of(rows, "program", "attention", "mode", "ms"), [
            ("torch", "cudnn", "default", "200.000"), ("torch", "flash3", "default", "150.000"),
            ("torch", "cudnn", "reduce-overhead", "190.000"), ("torch", "flash3", "reduce-overhead", "140.000"),
            ("torch", "flash3", "max-autotune", "150.000"), ("train_gpt2cu", "", "", "350.000"),
            ("torch", "flash3", "reduce-overhead", "140.000"), ("train_gpt2cu", "", "", "350.000"),
            ("torch", "flash3", "reduce-overhead", "140.000"), ("train_gpt2cu", "", "", "350.000")])
        steps = [words[i + 1] for i, word in enumerate(words) if word == "--steps"]
        weights = 12 * 12 * 768**2 + 50257 * 768
        flop = 6 * 4096 * (weights + 12 * 768 * 1024)
        self.assertEqual(steps, [str(1 + math.ceil(1 / (flop / 620e12)) + math.ceil(4 / (flop / 620e12)))] + [str(1 + 3 + 12)] * 2)

    def test_a_row(self):
        rows, _ = self.compare(turns=1, ways=[("cudnn", "default")])
        self.assertEqual(rows[0], {
            "configuration": "d12:64x1024", "program": "torch", "attention": "cudnn", "mode": "default", "flags": "", "ms": "200.000",
            "tok_s": "327680", "memory_gib": "4.00", "device_gib": "6.00", "timed_s": "2.0", "loss": "4.4000", "mfu": "",
            "compile_s": "12", "failure": ""})
        self.assertEqual(rows[1], {
            "configuration": "d12:64x1024", "program": "train_gpt2cu", "attention": "", "mode": "", "flags": "", "ms": "350.000",
            "tok_s": "187246", "memory_gib": "2.50", "device_gib": "2.50", "timed_s": "0.7", "loss": "4.5000", "mfu": "0.3500",
            "compile_s": "", "failure": ""})
        self.assertEqual(self.text("x.csv").splitlines()[0], ",".join(rows[0]))
        self.assertEqual(len(self.text("x.csv").splitlines()), 3)

    def test_a_row_with_dropout(self):
        rows, _ = self.compare(turns=1, ways=[("cudnn", "default")], configuration=D12._replace(dropout=0.1))
        self.assertEqual(self.of(rows, "configuration", "program", "flags"), [
            ("d12:64x1024 dropout 0.1", "torch", ""), ("d12:64x1024 dropout 0.1", "train_gpt2cu", "")])

    def test_one_fails(self):
        rows, _ = self.compare("#!/bin/sh\necho 'error: no' >&2\nexit 1\n", ways=[("cudnn", "default")])
        self.assertEqual(self.of(rows, "program", "ms", "failure"), [("torch", "200.000", ""), ("train_gpt2cu", "", "error: no")])
        rows, _ = self.compare(peer="import sys; sys.stdin.readline(); sys.exit('Error x')", ways=[("best", "default")], turns=2)
        self.assertEqual(self.of(rows, "program", "attention", "ms", "failure"), [
            ("torch", "cudnn", "", "Error x"), ("train_gpt2cu", "", "350.000", ""), ("train_gpt2cu", "", "350.000", "")])

    def test_no_time_is_left(self):
        self.replace(compare_train, "BEGAN", -1e9)
        rows, _ = self.compare(turns=1, no_new_after=1.0)
        self.assertEqual(self.of(rows, "attention", "mode", "ms", "failure")[1:4], [
            ("flash3", "default", "150.000", ""), ("flash3", "reduce-overhead", "", "not run: no time was left"),
            ("flash3", "max-autotune", "", "not run: no time was left")])

    def test_the_program(self):
        path = self.program("train_gpt2cu", OURS)
        self.replace(compare_train, "PEER", self.file("peer.py", PEER))
        asked = []
        for name, value in (("torch_on_card", asked.append), ("environment", lambda torch, commit: [("commit", commit)])):
            self.replace(compare_train, name, value)
        shards = []
        self.replace(random_shard, "write", shards.append)
        self.replace(sys, "argv", ["compare_train.py", "--only", "d12:4x16384", "--seconds", "1", "--turns", "1", "--program", path,
                                   "--ways", "flash3/default", "--device", "2"])
        status, out, err, code = self.said(compare_train.main)
        self.assertEqual((status, err, code, asked), (0, "", None, [2]))
        self.assertRegex(out, "^commit   0123abc\n")
        self.assertRegex(out, r"(?m)^ *d12:4x16384 .* --recompute gelu$")
        self.assertEqual([os.path.basename(path) for path in shards], ["random_000001.bin"])
        self.program("train_gpt2cu", "#!/bin/sh\nexit 1\n")
        self.assertEqual(self.said(compare_train.main)[0], 1)
        os.unlink(path)
        self.refused("train_gpt2cu is missing; hint: make train_gpt2cu", 2, compare_train.main)


class Combined(Parts):
    """The table of medians."""

    def row(self, program, ms, attention="", mode="", **more):
        return {"configuration": "d12:4x16384", "program": program, "attention": attention, "mode": mode, "flags": "--recompute gelu",
                "ms": str(ms), "tok_s": str(round(65536e3 / ms)) if ms else "", "memory_gib": "6.0" if program == "train_gpt2cu" else "10.0",
                "device_gib": "", "timed_s": "5.0", "loss": "10.8", "mfu": "0.5", "compile_s": "12", "failure": "", **more}

    def rows(self):
        return [self.row("torch", 200, "cudnn", "default"), self.row("torch", 150, "flash3", "default"),
                self.row("torch", "", "flash3", "max-autotune", tok_s="", failure="no memory"),
                self.row("train_gpt2cu", 100), self.row("torch", 130, "flash3", "default"), self.row("train_gpt2cu", 110),
                self.row("torch", 140, "flash3", "default"), self.row("train_gpt2cu", 105)]

    def test_medians(self):
        ways = combine.train_rows(self.rows())["d12:4x16384"]
        self.assertEqual({name: len(turns) for name, turns in ways.items()}, {"cudnn, default": 1, "flash3, default": 3, "ours": 3})
        self.assertEqual(combine.best_of(ways), "flash3, default")
        self.assertEqual(combine.best_with(ways, "cudnn"), "cudnn, default")
        self.assertIsNone(combine.best_with(ways, "flash"))
        flop = 6 * (12 * 12 * 768**2 + 50257 * 768) + 6 * 12 * 768 * 16384
        self.assertEqual(cases.flop_of_token("d12", 16384), flop)
        cells = combine.train_summary("d12:4x16384", ways)
        self.assertEqual(cells, ["d12:4x16384", "624,152 (595,782 to 655,360)", "105.00 (100.00 to 110.00)", f"{1e-12 * 624152 * flop:.0f}",
                                 "468,114 (436,907 to 504,123)", "flash3, default", "327,680", "468,114", "1.33", "6.0 / 10.0",
                                 "yes >=1.30 <=0.7", "--recompute gelu"])
        self.assertIsNone(combine.train_summary("x", {"ours": ways["ours"]}))
        apart = {**ways, "ours": [{**turn, "loss": "9.0"} for turn in ways["ours"]]}
        self.assertEqual(combine.train_summary("d12:4x16384", apart)[-2], "yes >=1.30 <=0.7, losses 1.80 apart")
        self.assertIsNone(combine.train_summary("x", {"flash3, default": ways["flash3, default"]}))

    def test_the_aims(self):
        self.assertEqual(combine.MUST_TRAIN, {
            "d12:64x1024": (1.20, None), "d12:4x1024": (1.50, None), "d24:32x1024": (1.20, None), "d48:16x1024": (1.15, None),
            "d12:4x16384": (1.30, 0.7), "d12:1x65536": (1.30, 0.7), "d12:1x131072": (1.30, 0.7)})
        self.assertEqual((combine.MUST_ATTENTION, combine.MUST_DROPOUT, combine.LOSS_APART), (1.05, 1.8, 0.25))
        for speed, memory, apart, cell in ((1.30, 0.7, 0.25, "yes >=1.30 <=0.7"), (1.29, 0.7, 0, "no >=1.30 <=0.7"),
                                           (1.30, 0.71, 0, "no >=1.30 <=0.7"), (1.3, 0.7, 0.26, "yes >=1.30 <=0.7, losses 0.26 apart")):
            self.assertEqual(combine.train_verdict("d12:1x65536", speed, memory, apart), cell)
        self.assertEqual(combine.train_verdict("d12:64x1024", 1.19, 9, 0), "no >=1.20")
        self.assertEqual(combine.train_verdict("d36:1x1", 0.5, 9, 0), "-")

    def test_dropout_of_training(self):
        """Rows of their own, another ratio to reach, the same memory, a note; runs without it stand beside."""
        self.assertEqual(combine.MUST_TRAIN_DROPOUT, 1.3)
        self.assertEqual([combine.must_train(name) for name in ("d12:4x1024", "d12:4x1024 dropout 0.1", "d12:4x16384 dropout 0.2", "d36:1x1 dropout 0.1")],
                         [(1.5, None), (1.3, None), (1.3, 0.7), (1.3, None)])
        drops = [{**row, "configuration": "d12:4x16384 dropout 0.1", "ms": str(2 * float(row["ms"]))} for row in self.rows()
                 if row["ms"] and row["attention"] != "flash3"]
        report = compare_train.Report(None, self.path("x.md"))
        whole, out, _, _ = self.said(combine.combine_train, self.rows() + drops, report)
        report.close()
        self.assertIs(whole, True)
        for text in ("\n| d12:4x16384 | ", "\n| d12:4x16384 dropout 0.1 | ", " | 1.33 | 6.0 / 10.0 | yes >=1.30 <=0.7 | ", " | 1.90 | ",
                     "\n| d12:4x16384 dropout 0.1 | cudnn, default | ", "flash: FlashAttention-2, as FlashAttention-3 has no dropout."):
            self.assertIn(text, self.text("x.md"))
        lines = [line for line in out.splitlines() if line.endswith((" flags of ours", " --recompute gelu"))]
        self.assertEqual({line.index(word) + len(word) for line, word in zip(lines, ("ours tok/s", "655,360)", "655,360)"))}, {55}, "columns stand")
        report = compare_train.Report(None, self.path("x.md"))
        self.said(combine.combine_train, self.rows(), report)
        report.close()
        self.assertNotIn("dropout", self.text("x.md"))

    def test_memory_that_was_not_measured(self):
        def summary(*ours):
            rows = [row for row in self.rows() if row["program"] == "torch"]
            rows += [self.row("train_gpt2cu", ms, memory_gib=gib) for ms, gib in ours]
            return combine.train_summary("d12:4x16384", combine.train_rows(rows)["d12:4x16384"])[8:11]

        self.assertEqual(summary((100, "nan")), ["1.40", "n/a / 10.0", "n/a >=1.30 <=0.7"])
        self.assertEqual(summary((130, "nan")), ["1.08", "n/a / 10.0", "no >=1.30 <=0.7"])
        self.assertEqual(summary((100, "nan"), (100, "nan"), (100, "6.0")), ["1.40", "6.0 / 10.0", "yes >=1.30 <=0.7"])
        self.assertEqual(combine.train_verdict("d12:64x1024", 1.3, math.nan, 0), "yes >=1.20", "no aim for memory")

    def test_tables(self):
        report = compare_train.Report(None, self.path("x.md"))
        whole = self.said(combine.combine_train, self.rows(), report)[0]
        report.close()
        self.assertIs(whole, True)
        self.assertIn("| d12:4x16384 | flash3, default | 468,114 (436,907 to 504,123) | 3 | 15 | 12 | 10.0 | 10.8 |  |\n", self.text("x.md"))
        self.assertIn("| d12:4x16384 | flash3, max-autotune | - | 0 | 0 | 12 | - | - | no memory |\n", self.text("x.md"))
        rows = [row for row in self.rows() if row["program"] == "torch"]
        self.assertIs(self.said(combine.combine_train, rows, compare_train.Report(None, None))[0], False)
        rows = [{**row, "configuration": "d12:4x1024"} for row in rows] + self.rows()
        self.assertIs(self.said(combine.combine_train, rows, compare_train.Report(None, None))[0], False, "the first configuration lacks ours")

    def test_memory_that_cuda_graphs_hold_counts(self):
        for mode, expected in (("default", "1"), ("reduce-overhead", "2"), ("max-autotune", "2"), ("max-autotune-no-cudagraphs", "1")):
            self.assertEqual(combine.used_gib({"mode": mode, "memory_gib": "1", "device_gib": "2"})["used_gib"], expected)

    def test_turns_of_another_card_count_where_there_are_none_beside_ours(self):
        def run(*rows):
            return combine.Run("x", {}, list(rows))

        default, tuned = self.row("torch", 150, "cudnn", "default"), self.row("torch", 140, "cudnn", "max-autotune")
        ours, elsewhere = self.row("train_gpt2cu", 100), {**default, "ms": "90"}
        self.assertEqual(combine.beside_ours([run(ours, default), run(elsewhere, tuned)]), [ours, default, tuned])
        self.assertEqual(combine.beside_ours([run(ours), run(elsewhere, tuned)]), [ours, elsewhere, tuned])
        failed = {**default, "ms": ""}
        self.assertEqual(combine.beside_ours([run(ours, failed), run(elsewhere)]), [ours, failed, elsewhere])

    def attention_run(self, number, check, *rows, mask="causal"):
        """A run whose cells are (T, {kernel: TFLOP/s})."""
        return combine.Run(f"{number}.csv", {"card": "a card"}, [
            {"head_size": "64", "mask": mask, "T": str(T), "direction": "forward", "kernel": kernel, "tflops": str(speed),
             "error": "1.0", "bits": "equal", "check": check} for T, speeds in rows for kernel, speed in speeds.items()])

    def test_a_check_that_failed_in_any_run_has_failed(self):
        for found in (("FAIL", "ok"), ("ok", "FAIL"), ("FAIL", "-"), ("-", "FAIL", "ok")):
            runs = [self.attention_run(i, check, (64, {"ours": 2, "FA3": 1})) for i, check in enumerate(found)]
            self.assertEqual(combine.attention_cells(runs)[1], {(64, "causal", 64): ("1.0", "equal", "FAIL")}, found)

    def test_cells_that_hold(self):
        runs = [self.attention_run(i, "ok", (64, {"ours": 104, "FA3": 100}), (128, {"ours": 105, "FA3": 100}),
                                   (256, {"ours": 104 + i, "FA3": 100, "packed": 900})) for i in range(3)]
        cells, _ = combine.attention_cells(runs)
        said = combine.attention_verdict(cells, runs)
        self.assertIn("by the median 2 of 3 cells, in every run 1.", said[1])
        report = compare_train.Report(self.path("a.csv"), self.path("a.md"))
        self.said(lambda: (combine.combine_attention(runs, report), report.close()))
        rows = {row["T"]: row for row in csv.DictReader(self.text("a.csv").splitlines())}
        self.assertEqual([rows["256"][name] for name in ("ours", "ours_least", "ours_most", "ratio_least", "ratio_most", "runs", "FA2")],
                         ["105.0", "104.0", "106.0", "1.0400", "1.0600", "3", ""])
        self.assertEqual([line.count("yes") for line in self.text("a.md").splitlines() if line.startswith(("| 64", "| 128", "| 256"))],
                         [0, 1, 1])

    def test_dropout(self):
        """Its must, what it costs, and other masks in the same table."""
        runs = [self.attention_run(i, "ok", (1024, {"ours": 200, "plain": plain, "FA2": 110, "cuDNN": 100}),
                                   (8192, {"ours": 190, "plain": 209, "cuDNN": 110}), mask="dropout 0.1")
                for i, plain in enumerate((230, 240, 250))]
        runs.append(self.attention_run(3, "ok", (1024, {"ours": 106, "FA3": 100})))
        cells, _ = combine.attention_cells(runs)
        self.assertEqual([round(cost, 9) for cost in cells[64, "dropout 0.1", 1024, "forward"]["cost"]], [15.0, 20.0, 25.0])
        self.assertEqual(combine.attention_verdict(cells, runs)[1:], [
            "must (1.05 x the best peer): by the median 1 of 1 cells, in every run 1.",
            "must (1.8 x the best peer): by the median 1 of 2 cells, in every run 1.",
            "Not in every run: forward 64 dropout 0.1 T=8192 1.727 (1.727 to 1.727)."])
        report = compare_train.Report(self.path("a.csv"), self.path("a.md"))
        self.said(lambda: (combine.combine_attention(runs, report), report.close()))
        self.assertIn("| T | ours | FA3 | cuDNN | FA2 | plain | cost, % | ratio | must |", self.text("a.md"))
        self.assertIn("| 1024 | 200 (200 to 200) | - | 100 (100 to 100) | 110 (110 to 110) | 240 (230 to 250) | 20.0 (15.0 to 25.0) | "
                      "1.818 (1.818 to 1.818) | yes | 3 |", self.text("a.md"))
        self.assertIn("| 1024 | 106 | 100 | - | - | - | - | 1.060 | yes | 1 |", self.text("a.md"))
        self.assertIn("cost: the time that dropout adds", self.text("a.md"))
        rows = list(csv.DictReader(self.text("a.csv").splitlines()))
        self.assertEqual([(row["mask"], row["plain"], row["cost"], row["cost_most"]) for row in rows], [
            ("dropout 0.1", "240.0", "20.0", "25.0"), ("dropout 0.1", "209.0", "10.0", "10.0"), ("causal", "", "", "")])

    def test_medians_over_runs(self):
        """The ratio is taken within a run."""
        runs = [self.attention_run(i, check, (1024, {"ours": ours, "FA3": fa3, "cuDNN": cudnn}))
                for i, (ours, fa3, cudnn, check) in enumerate(((110, 100, 50, "ok"), (106, 100, 50, "-"), (120, 90, 115, "FAIL")))]
        runs[2] = runs[2]._replace(header={"card": "another card"})
        cells, _ = combine.attention_cells(runs)
        self.assertEqual(cells[64, "causal", 1024, "forward"]["ratio"], [1.1, 1.06, 120 / 115])
        self.assertEqual(combine.attention_verdict(cells, runs), [
            "3 runs on 2 cards, 3 or more of every cell.", "must (1.05 x the best peer): by the median 1 of 1 cells, in every run 0.",
            "Not in every run: forward 64 causal T=1024 1.060 (1.043 to 1.100)."])
        report = compare_train.Report(None, self.path("a.md"))
        self.said(lambda: (report.header(combine.header_of(runs)), combine.combine_attention(runs, report), report.close()))
        self.assertIn("| 1024 | 110 (106 to 120) | 100 (90 to 100) | 50 (50 to 115) | - | 1.060 (1.043 to 1.100) | yes | 3 | 1.0 | equal | FAIL |",
                      self.text("a.md"))
        self.assertIn("- card: a card\n- card: another card\n", self.text("a.md"))

    def test_spread(self):
        self.assertEqual(combine.spread([2.0], "{:.1f}"), "2.0")
        self.assertEqual(combine.spread([4.0, 1.0, 2.0], "{:.1f}"), "2.0 (1.0 to 4.0)")

    def test_runs_that_do_not_go_together(self):
        paths = [self.file(name, f"# commit: {commit}\n# torch: 2\nconfiguration,ms\na,1\nb\n") for name, commit in (
            ("a.csv", "01"), ("b.csv", "01"), ("c.csv", "02"))]
        runs = combine.read_runs(paths[:2], ["configuration"])
        self.assertEqual([run.rows for run in runs], [[{"configuration": "a", "ms": "1"}]] * 2, "a torn row is left out")
        self.refused("c.csv: commit: expected 01, as .*a.csv has, found 02", 2, combine.read_runs, paths, ["configuration"])
        self.refused("a.csv: expected rows with a column tflops, found configuration, ms", 2, combine.read_runs, paths, ["ms", "tflops"])


class RandomShard(Parts):
    def test_the_shard(self):
        path = self.path("x.bin")
        self.assertEqual(random_shard.N_TOKENS, (1 << 22) + 1)
        self.replace(random_shard, "N_TOKENS", 10001)
        random_shard.write(path)
        with open(path, "rb") as file:
            header, tokens = array.array("i", file.read(1024)), array.array("H", file.read())
        self.assertEqual(header.tolist(), [20240520, 1, 10001] + [0] * 253)
        expected, x = [], 1  # Knuth's MMIX generator, its upper bits
        for _ in range(10001):
            x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
            expected.append(x // 2**33 % 50257)
        self.assertEqual(tokens.tolist(), expected)
        self.assertEqual(os.listdir(self.folder), ["x.bin"])
        self.assertIs(random_shard.is_there(path), True)

    def test_a_file_that_is_there(self):
        self.assertIs(random_shard.is_there(self.path("none.bin")), False)
        self.refused("novel.bin: is there, and another file", 2, random_shard.is_there, self.file("novel.bin", "mine"))
        cut = self.file("cut.bin", random_shard.header().tobytes())
        self.refused("cut.bin: is there, and another file", 2, random_shard.is_there, cut)
        self.replace(sys, "argv", ["random_shard.py", cut])
        self.refused("cut.bin: is there, and another file", 2, random_shard.main)

    def test_a_full_disk(self):
        """A failure at run time; a folder that is not there is bad input."""
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        os.symlink("/dev/full", self.path("x.bin"))
        for path, status in ((self.path("x.bin"), 1), (self.path("none", "x.bin"), 2)):
            done = subprocess.run([sys.executable, "-B", os.path.join(SCRIPTS, "random_shard.py"), path], capture_output=True, text=True,
                                  check=False)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (status, 1), done.stderr)
