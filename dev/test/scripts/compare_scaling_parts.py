"""scripts/compare_scaling.py, with stand-ins for both trainers."""
import os
import statistics
import sys
import types

from parts import Parts

import cases
import compare_scaling
import compare_train
import random_shard
import scaling

# A stand-in for ./train_gpt2cu: 100 ms a step, 102 where it sees card 1 alone, 104 with --gpus 2; eight and four times as long with
# 131,072 tokens a step; notes its words and the card it sees.
OURS = """#!/bin/sh
[ "$1" != --version ] || { echo 'train_gpt2 0123abc'; exit; }
echo "$* card $CUDA_VISIBLE_DEVICES" >>"${0%/*}/words"
ms=100 micro=1
[ "$CUDA_VISIBLE_DEVICES" != 1 ] || ms=102
case " $* " in *' --tokens-per-step 131072 '*) micro=8 ;; esac
while [ $# -gt 0 ]; do [ "$1" = --out ] && out=$2; [ "$1" = --gpus ] && ms=104 && micro=$((micro > 1 ? micro / 2 : 1)); shift; done
ms=$((ms * micro))
mkdir -p "$out"
for step in 1 2 3 4; do echo "{\\"step\\": $step, \\"loss\\": 4.5, \\"ms\\": $ms, \\"mfu\\": 0.5}"; done >"$out/log.jsonl"
echo 'memory: planned 1.0 GiB, measured 2.5 GiB'
"""
# A stand-in for scripts/torch_gpt2.py: 120 ms a step alone, 124 on card 1; on two ranks 150, with buckets of 100 MB 130. Rank 1 has more memory.
PEER = """
import json, os, sys
words, ranks = sys.argv[1:], int(os.environ.get("WORLD_SIZE", "1"))
bucket = words[words.index("--bucket-mb") + 1] if "--bucket-mb" in words else ""
with open(os.environ["TOLD"], "a") as file:
    print(ranks, os.environ.get("RANK", "-"), os.environ.get("LOCAL_RANK", "-"), os.environ.get("CUDA_VISIBLE_DEVICES", "-"), bucket, file=file)
way = sys.stdin.readline().split()
if way == ["cudnn", "default"] and os.environ.get("RANK") == "1":
    sys.exit("torch.AcceleratorError: rank 1 has no card")
if way == ["cudnn", "default"] and ranks > 1:
    sys.stdin.read()
if way:
    print(json.dumps({"compiled_s": 12.0, "step_s": 0.1}), flush=True)
ms = (124 if os.environ.get("CUDA_VISIBLE_DEVICES") == "1" else 120) if ranks == 1 else 130 if bucket == "100" else 150
for line in sys.stdin:
    micro = int((line.split() + ["1"])[1])
    print(json.dumps({"steps": 10, "seconds": 0.01 * ms * micro, "loss": 4.4, "memory": 4 << 30, "reserved": (6 + int(os.environ.get("RANK", 0))) << 30}), flush=True)
"""


class Scaling(Parts):
    def setUp(self):
        super().setUp()
        self.replace(compare_train, "PEER", self.file("peer.py", PEER))
        os.environ["TOLD"] = self.path("told")
        self.addCleanup(os.environ.pop, "TOLD")
        self.addCleanup(os.environ.pop, "NCCL_NVLS_ENABLE", None)
        self.program("train_gpt2cu", OURS)

    def arguments(self, *words):
        return compare_scaling.parse_arguments(["--program", self.path("train_gpt2cu"), "--seconds", "1", "--turns", "2", "--limit", "300", *words])

    def compare(self, *words):
        """Rows of the CSV."""
        arguments = self.arguments(*words)
        report = compare_scaling.Report(self.path("x.csv"), self.path("x.md"))
        turns = compare_scaling.Turns(report, compare_scaling.COLUMNS)
        for cases in compare_scaling.of_one_micro_batch(arguments.cases):
            groups = [] if arguments.ours_only else compare_scaling.groups_of(cases[0], "a shard", arguments)
            self.said(compare_scaling.compare, cases, groups, "a shard", arguments, self.folder, turns)
        self.whole = self.said(compare_scaling.table, turns.rows, arguments.gpus, report)[0]
        report.close()
        return turns.rows

    def of(self, rows, *names):
        return [tuple(row[name] for name in names) for row in rows]

    def test_the_cases(self):
        self.assertEqual(compare_scaling.MUST, {"d12:16x1024": 95.0, "d12:64x1024/524288": 99.0, "d24:32x1024/524288": 99.0, "d48:16x1024/524288": 99.5})
        parsed = compare_scaling.parse_arguments([])
        self.assertLessEqual(set(compare_scaling.MUST), {compare_scaling.name_of(case) for case in parsed.cases})
        self.assertEqual([[(case.model, case.B, case.tokens) for case in batch] for batch in compare_scaling.of_one_micro_batch(parsed.cases)], [
            [("d12", 16, 0)], [("d12", 64, 0), ("d12", 64, 524288)], [("d24", 32, 0), ("d24", 32, 524288)], [("d48", 16, 524288)]])
        self.assertEqual((parsed.cases, parsed.gpus, parsed.seconds, parsed.turns, parsed.buckets, parsed.way, parsed.deadline),
                         (compare_scaling.parse_arguments(["--cases", compare_scaling.CASES]).cases, 2, 5.0, 3, [25.0, 100.0], ("flash3", "default"), None))
        for text in ("d12:16x1024/0", "d12:16x1024/", "d12:16x1024/x", "d12:16/16384", "d12:16x1024/16384/2"):
            self.refused("expected MODEL:BxT or MODEL:BxT/TOKENS, such as", 2, compare_scaling.parse_arguments, ["--cases", text])
        for text in ("d12:16x1024/16384", "d12:16x1024/49152"):
            self.refused("expected tokens that are a multiple of 32768", 2, compare_scaling.parse_arguments, ["--cases", text])

    def test_turns(self):
        rows = self.compare("--cases", "d12:16x1024")
        first = [("train_gpt2cu", "1", "", "0", "100.000", "163840"), ("train_gpt2cu", "1", "", "1", "102.000", "160627"), ("train_gpt2cu", "2", "", "", "104.000", "315077"),
                 ("torch", "1", "", "0", "120.000", "136533"), ("torch", "1", "", "1", "124.000", "132129"), ("torch", "2", "25", "", "150.000", "218453"),
                 ("torch", "2", "100", "", "130.000", "252062")]
        second = [first[6], *first[3:5], first[2], *first[:2]]
        self.assertEqual(self.of(rows, "program", "gpus", "bucket_mb", "cards", "ms", "tok_s"), first + second, "the faster bucket goes on; the second turn is the first one backwards")
        self.assertEqual(self.of(rows, "device_gib", "compile_s", "failure")[:7], [("2.50", "", "")] * 3 + [("6.00", "12", "")] * 2 + [("7.00", "12", "")] * 2, "the rank with most memory")
        self.assertEqual(sorted(self.text("told").split("\n")[:-1]), ["1 - - 0 ", "1 - - 1 ", "2 0 0 - 100", "2 0 0 - 25", "2 1 1 - 100", "2 1 1 - 25"])
        words = sorted(self.text("words").split("\n")[:3])
        self.assertRegex(words[0], "--batch 16 .* --tokens-per-step 16384 .*--model-only card 0$")
        self.assertRegex(words[1], "--batch 16 .* --tokens-per-step 16384 .*--model-only card 1$")
        self.assertRegex(words[2], "--batch 16 .* --tokens-per-step 32768 .*--model-only --gpus 2 card $")
        self.assertIs(self.whole, True)
        case = cases.Case("d12", 16, 1024)
        self.assertEqual(scaling.measured_rows(self.path("x.csv")), {case: {1: statistics.harmonic_mean([100, 102]), 2: 104.0}})
        self.assertEqual(scaling.read_measured(self.path("x.csv")), {case: 101.0})
        row = next(line for line in self.text("x.md").splitlines() if line.startswith("| d12:16x1024"))
        self.assertEqual([cell.strip() for cell in row.split("|")[1:-1]],
                         ["d12:16x1024", "162,234 (160,627 to 163,840)", "315,077 (315,077 to 315,077)", "97.11", "yes >=95",
                          "134,331 (132,129 to 136,533)", "252,062 (252,062 to 252,062)", "93.82", "100", "1.25"])

    def test_the_same_tokens_at_any_count(self):
        """The case behind it has the same processes of PyTorch, and of the buckets the faster one alone."""
        rows = self.compare("--cases", "d12:16x1024,d12:16x1024/131072", "--turns", "1")
        self.assertEqual(self.of(rows, "configuration", "program", "gpus", "bucket_mb", "ms", "tok_s")[7:], [
            ("d12:16x1024/131072", "train_gpt2cu", "1", "", "800.000", "163840"), ("d12:16x1024/131072", "train_gpt2cu", "1", "", "816.000", "160627"),
            ("d12:16x1024/131072", "train_gpt2cu", "2", "", "416.000", "315077"), ("d12:16x1024/131072", "torch", "1", "", "960.000", "136533"),
            ("d12:16x1024/131072", "torch", "1", "", "992.000", "132129"), ("d12:16x1024/131072", "torch", "2", "100", "520.000", "252062")])
        self.assertEqual(len(self.text("told").split("\n")), 7, "one process a card alone, and one a rank and bucket")
        words = self.text("words").split("\n")
        self.assertRegex(words[3], "--batch 16 .* --tokens-per-step 131072 .*--model-only card [01]$")
        self.assertRegex(words[5], "--batch 16 .* --tokens-per-step 131072 .*--model-only --gpus 2 card $")
        case = cases.Case("d12", 16, 1024, 131072)
        self.assertEqual(scaling.measured_rows(self.path("x.csv"))[case], {1: statistics.harmonic_mean([800, 816]), 2: 416.0})
        self.assertEqual(scaling.read_measured(self.path("x.csv")), {cases.Case("d12", 16, 1024): 101.0}, "one micro-step alone")
        self.assertIn("| 315,077 | 97.11 | - | 134,331 (132,129 to 136,533) | 252,062 | 93.82 | 100 | 1.25 |", " ".join(self.text("x.md").split()))

    def test_a_case_that_falls_short(self):
        self.compare("--cases", "d12:16x1024/131072", "--ours-only")
        self.replace(compare_scaling, "MUST", {"d12:16x1024/131072": 99.0})
        self.compare("--cases", "d12:16x1024/131072", "--ours-only")
        self.assertIn("| 97.11 | no >=99 | - | - | - | - | - |", self.text("x.md"))
        self.assertEqual(compare_scaling.verdict("d12:16x1024/131072", 4, 98.1), "yes >=98")
        self.assertEqual(compare_scaling.verdict("d12:16x1024/131072", 8, 98.1), "-")
        self.assertEqual(compare_scaling.verdict("d12:16x1024", 2, 98.1), "-")
        self.assertFalse(os.path.exists(self.path("told")), "without PyTorch")

    def test_the_flags_of_a_configuration_are_in_its_rows(self):
        rows = self.compare("--cases", "d12:4x16384", "--ours-only", "--turns", "1")
        self.assertEqual(self.of(rows, "flags"), [("--recompute gelu",)] * 3)
        self.assertIn("--recompute gelu", self.text("words"))

    def test_a_rank_that_fails_ends_the_others(self):
        rows = self.compare("--cases", "d24:1x64", "--way", "cudnn/default", "--buckets", "25")
        failed = [row for row in rows if row["failure"]]
        self.assertEqual([(row["program"], row["gpus"]) for row in failed], [("torch", "2")], "once")
        self.assertIn("rank 1 has no card", failed[0]["failure"])
        self.assertEqual([row["ms"] for row in rows if row["program"] == "torch" and row["gpus"] == "1"], ["120.000", "124.000"] * 2)
        self.assertIs(self.whole, True, "ours is there")

    def test_ours_fails(self):
        self.program("train_gpt2cu", "#!/bin/sh\necho 'error: no' >&2\nexit 1\n")
        rows = self.compare("--cases", "d12:16x1024", "--ours-only", "--turns", "1")
        self.assertEqual(self.of(rows, "gpus", "ms", "failure"), [("1", "", "error: no")] * 2 + [("2", "", "error: no")])
        self.assertIs(self.whole, False)

    def test_the_deadline(self):
        self.replace(compare_scaling, "BEGAN", -1e9)
        rows = self.compare("--cases", "d12:16x1024", "--deadline", "10", "--turns", "1")
        self.assertEqual({row["failure"] for row in rows}, {"not run: no time was left"})

    def test_the_program(self):
        asked = []
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(device_count=lambda: 2, nccl=types.SimpleNamespace(version=lambda: (2, 28, 9))))
        self.replace(compare_scaling, "torch_on_card", lambda: torch)
        self.replace(compare_scaling, "environment", lambda torch, commit, cards: [("card", f"{cards} cards"), ("commit", commit)])
        self.replace(random_shard, "write", asked.append)
        self.replace(sys, "argv", ["compare_scaling.py", "--cases", "d48:1x8", "--turns", "1", "--seconds", "1", "--program", self.path("train_gpt2cu"), "--csv", self.path("x.csv")])
        status, out, err, code = self.said(compare_scaling.main)
        self.assertEqual((status, err, code), (0, "", None))
        self.assertRegex(out, "^card     2 cards\ncommit   0123abc\nNCCL     2.28.9 of PyTorch, NCCL_NVLS_ENABLE=")
        self.assertEqual([os.path.basename(path) for path in asked], ["random_000001.bin"])
        self.file("y.csv", self.text("x.csv").replace("d48:1x8", "d12:64x1024"))
        again = ["compare_scaling.py", "--cases", "d48:1x8", "--turns", "1", "--seconds", "1", "--program", self.path("train_gpt2cu")]
        self.replace(sys, "argv", [*again, "--add", self.path("y.csv"), "--csv", self.path("y.csv"), "--markdown", self.path("y.md")])
        self.assertEqual(self.said(compare_scaling.main)[0], 0)
        self.assertEqual([line.split(",")[0] for line in self.text("y.csv").splitlines() if ",train_gpt2cu," in line], ["d12:64x1024"] * 3 + ["d48:1x8"] * 3)
        self.assertEqual([line for line in self.text("y.md").splitlines() if line.startswith("- ")][-2:], ["- before, card: 2 cards", "- before, command: unknown"])
        self.assertEqual(sum(line.startswith("| d") for line in self.text("y.md").splitlines()), 2)
        self.file("y.csv", self.text("y.csv").replace("0123abc", "fedcba9"))
        self.refused("commit: expected 0123abc, found fedcba9", 2, compare_scaling.main)
        torch.cuda.device_count = lambda: 1
        self.refused("--gpus 2: PyTorch sees 1", 2, compare_scaling.main)
        os.unlink(self.path("train_gpt2cu"))
        self.refused("train_gpt2cu is missing", 2, compare_scaling.main)

    def test_a_dry_run_needs_nothing(self):
        self.replace(sys, "argv", ["compare_scaling.py", "--dry-run", "--cases", "d12:16x1024", "--program", "/none/train"])
        status, out, err, code = self.said(compare_scaling.main)
        self.assertEqual((status, err, code, out.count("\n")), (None, "", None, 5))
        self.assertRegex(out, "(?m)^/none/train .*--tokens-per-step 32768 .* --gpus 2$")
        self.assertRegex(out, "(?m)^2 ranks: echo flash3 default .* --bucket-mb 100$")

    def test_bad_words(self):
        for flag, texts in (("--buckets", ("", "x", "0.5", "25,")), ("--way", ("best/default", "flash3", "cudnn/default,flash3/default"))):
            for text in texts:
                self.refused(f"argument {flag}: expected ", 2, compare_scaling.parse_arguments, [flag, text])
