"""scripts/context.py, with a stand-in for the trainer."""
import os
import signal
import subprocess
import sys
import time
import types

from parts import SCRIPTS, Parts

import comparison
import context
import random_shard

# A stand-in for the trainer: notes its words in the folder of --out, writes a log, says a memory.
TRAINER = """#!/bin/sh
words=$*
while [ $# -gt 0 ]; do [ "$1" = --out ] && out=$2; shift; done
[ -n "$out" ] || exit 3
mkdir -p "$out" && echo "$words" >>"${out%/*}/words"
for ms in 900 40 10 30 20; do echo "{\\"step\\": 1, \\"loss\\": $ms, \\"ms\\": $ms}"; done >"$out/log.jsonl"
echo '{"step": 5, "loss": null, "ms": 50}' >>"$out/log.jsonl"
echo '{"step": 5, "val_loss": 2}' >>"$out/log.jsonl"
echo 'memory: planned 512.0 MiB, measured 2.0 GiB'
"""


def refusing(words, status):
    return f"#!/bin/sh\necho 'error: {words}' >&2\nexit {status}\n"


class Context(Parts):
    def trainer(self, text):
        self.replace(context, "PROGRAM", self.program("trainer", text))

    def words(self):
        """What the trainer was called with, run by run."""
        return [line.split() for line in self.text("words").splitlines()]

    def run_one(self, seq=2048, mode="linear", flags=(), inference=False):
        return self.said(context.run, seq, mode, "shard.bin", self.path("run"), list(flags), inference)


class Runs(Context):
    def test_modes(self):
        self.assertEqual(context.MODES, {
            "flash": ["--recompute", "none"], "gelu": ["--recompute", "gelu"], "linear": ["--recompute", "linear"],
            "block": ["--recompute", "block"], "standard": ["--attention", "standard"]})
        self.assertEqual(context.parse_arguments(["--modes", "block,flash"]).modes, ["block", "flash"])
        self.refused("'some' is not one of flash, gelu", 2, context.parse_arguments, ["--modes", "flash,some"])

    def test_steps(self):
        self.assertEqual([context.n_steps(seq) for seq in (1, 1024, 4096, 1 << 16, 1 << 17, 1 << 18, 1 << 20)],
                         [100, 100, 64, 4, 3, 2, 2])

    def test_flags_of_inference(self):
        self.assertEqual(context.inference_flags(1024, "s"), ["--val", "s", "--eval-batches", "128", "--sample-tokens", "1023"])
        self.assertEqual(context.inference_flags(1 << 20, "s")[3], "4")

    def test_a_row(self):
        self.trainer(TRAINER)
        row, _, err, code = self.run_one()
        self.assertEqual((err, code), ("", None))
        # The later half of the steps takes 30, 20 and 50 ms: 30 in the middle.
        self.assertEqual(row, {"T": 2048, "mode": "linear", "ms": 30, "tokens_per_second": 68267, "planned_gib": 0.5, "measured_gib": 2.0,
                               "first_loss": "900.000000", "last_loss": "nan", "forward_tokens_per_second": "",
                               "sample_tokens_per_second": ""})
        self.assertEqual(list(row), context.FIELDS)
        self.assertEqual(self.words(), [["--model", "d12", "--train", "shard.bin", "--batch", "1", "--seq", "2048", "--tokens-per-step",
                                         "2048", "--steps", "100", "--eval-every", "0", "--optimizer", "adamw", "--sample-tokens", "0", "--recompute", "linear",
                                         "--out", self.path("run"), "--model-only"]])

    def test_a_flag_of_the_user_stands_alone(self):
        self.trainer(TRAINER)
        self.run_one(mode="standard", flags=["--steps", "7", "--model", "d24"])
        words = self.words()[0]
        self.assertEqual([words.count(flag) for flag in ("--steps", "--model", "--train")], [1, 1, 1])
        self.assertEqual((words[words.index("--steps") + 1], words[words.index("--model") + 1]), ("7", "d24"))
        self.assertEqual(words[words.index("--attention") + 1], "standard")

    def test_a_short_run_is_made_again_and_longer(self):
        self.trainer(TRAINER)
        again = self.said(context.run_sustained, 2048, "linear", "s", self.path("run"), [])[0]
        steps = [words[words.index("--steps") + 1] for words in self.words()]
        self.assertEqual((again["ms"], steps), (30, ["100", str(-(-6500 // 30) + 1)]))
        self.said(context.run_sustained, 2048, "linear", "s", self.path("run"), ["--steps", "7"])
        self.assertEqual(len(self.words()), 3, "the user's steps stand")
        self.assertEqual([context.n_sustained({"ms": ms}, 10) for ms in (649.0, 650.0, "")], [12, 0, 0])

    def test_what_settles(self):
        def steps(*times):
            return [{"ms": ms} for ms in times]

        self.assertEqual(context.settled(steps(9, 400, 400, 400, 5, 6, 7, 8, 9, 10)), [5, 6, 7, 8, 9, 10])
        self.assertEqual(context.settled(steps(9000, 10, 20, 30)), [10, 20, 30], "at least the last half")
        self.assertEqual(context.settled(steps(9, 1)), [1])

    def test_what_does_not_fit_keeps_its_plan(self):
        self.trainer(refusing("--batch 1 needs 123.45 GiB, 80 are free", 1))
        row, _, err, code = self.run_one()
        self.assertEqual((row["planned_gib"], row["ms"], row["T"], err, code), (123.45, "", 2048, "", None))

    def test_failures(self):
        self.trainer(refusing("no disk", 1))
        self.assertEqual(self.run_one(), (None, "", "error: T = 2048, linear: no disk\n", None))
        self.trainer(refusing("no such flag", 2))
        self.refused("T = 2048, linear: no such flag", 2, context.run, 2048, "linear", "s", self.path("run"), [])


class Inference(Parts):
    TEXT = b"step 1/1 | loss 3\nstep 1/1 | val loss 2.0\n--- sample, step 1 ---\nabcdefgh\n---\ndone\n"

    def stream(self, seconds):
        """The text as it came: the line before the validation's at 9 s, a part of that at 10, its loss at 13, a letter at each of
        `seconds`, the rest at 99."""
        line, loss, sample = (self.TEXT.index(mark) for mark in (b"\nstep 1/1 | val", b"val loss", b"abc"))
        times = [(line + 1, 9.0), (line + 5, 10.0), (loss + 9, 13.0), (sample, 20.0)]
        times += [(sample + i, second) for i, second in enumerate(seconds, 1)] + [(len(self.TEXT), 99.0)]
        return types.SimpleNamespace(text=self.TEXT, times=times, when=lambda at: next(s for length, s in times if length > at))

    def test_rates_between_the_marks(self):
        stream = self.stream([30, 31, 32, 33, 34, 35, 36, 37])
        # 4 x 1024 tokens in the four seconds from the line before to the loss; the letters after the first come in 7 seconds.
        self.assertEqual(context.inference(stream, 1024, ["--eval-batches", "4", "--sample-tokens", "8"]),
                         {"forward_tokens_per_second": 1024, "sample_tokens_per_second": 1})
        flags = ["--eval-batches", "4", "--sample-tokens", "80"]  # ten tokens a piece
        self.assertEqual(context.inference(stream, 1024, flags)["sample_tokens_per_second"], 10)

    def test_of_a_long_sample_the_last_tokens_count(self):
        self.replace(context, "SAMPLE_TOKENS", 2)
        stream = self.stream([100, 200, 300, 400, 500, 600, 602, 604])
        flags = ["--eval-batches", "4", "--sample-tokens", "80"]
        self.assertEqual(context.inference(stream, 1024, flags)["sample_tokens_per_second"], 5)

    def test_without_marks(self):
        self.assertEqual(context.inference(types.SimpleNamespace(text=b"done", times=[]), 8, []), {})

    def test_a_stream(self):
        clock = iter([10.0, 17.0])

        def now():
            self.file("read", "")  # the first piece has come: the second may
            return next(clock)

        self.replace(context.time, "perf_counter", now)
        stream = context.Stream(["sh", "-c", 'printf one; until [ -e "$0" ]; do sleep 0.01; done; printf two; echo oh >&2; exit 3', self.path("read")])
        self.assertEqual((stream.text, stream.errors, stream.status), (b"onetwo", "oh\n", 3))
        self.assertEqual(stream.times, [(3, 10.0), (6, 17.0)])
        self.assertEqual([stream.when(i) for i in (0, 2, 3, 5)], [10.0, 10.0, 17.0, 17.0])

    def test_a_signal_as_the_program_begins_ends_it(self):
        began = self.signal_as_a_process_begins()
        self.assertEqual(self.said(context.Stream, ["sleep", "600"])[3], 143)
        self.assertEqual([process.poll() for process in began], [-signal.SIGKILL])


class Rows(Context):
    def test_rows_go_to_the_csv_and_back_in_the_order_of_modes_and_lengths(self):
        rows = {(T, mode): {**dict.fromkeys(context.FIELDS, ""), "T": T, "mode": mode}
                for T, mode in ((4096, "block"), (1024, "standard"), (2048, "flash"), (1024, "block"), (512, "gelu"))}
        context.write_rows(self.path("x.csv"), rows, ["# card: c"])
        self.assertEqual([line.split(",")[:2] for line in self.text("x.csv").splitlines()],
                         [["# card: c"], ["T", "mode"], ["2048", "flash"], ["512", "gelu"], ["1024", "block"], ["4096", "block"],
                          ["1024", "standard"]])
        found, comments = context.read_rows(self.path("x.csv"))
        self.assertEqual((set(found), comments), (set(rows), ["# card: c"]))
        self.assertEqual(found[4096, "block"]["T"], "4096")
        self.assertEqual(context.read_rows(self.path("none.csv")), ({}, []))

    def test_another_table(self):
        path = self.file("x.csv", "a,b\n1,2\n")
        self.refused("expected the columns T,mode", 2, context.read_rows, path)
        rest = "," * (len(context.FIELDS) - 2)
        path = self.file("y.csv", ",".join(context.FIELDS) + f"\nx,flash{rest}\n")
        self.refused("cannot be read", 2, context.read_rows, path)
        path = self.file("z.csv", ",".join(context.FIELDS) + f"\n64,flash{rest}\n128,flash,5\n")
        self.assertEqual(set(context.read_rows(path)[0]), {(64, "flash")}, "a torn row is left out")


class Program(Context):
    def arguments(self, *words):
        return context.parse_arguments(["--csv", self.path("x.csv"), "--png", self.path("x.png"), *words])

    def test_defaults(self):
        found = context.parse_arguments([])
        self.assertEqual((found.seq, found.modes, found.limit, found.inference), ([1 << i for i in range(10, 21)],
                                                                                  list(context.MODES), 60, False))
        self.refused("expected pairs", 2, context.parse_arguments, ["--", "--steps"])
        self.refused("expected pairs", 2, context.parse_arguments, ["--", "steps", "7"])

    def test_lengths_beyond_the_limit_are_left_out(self):
        self.trainer(TRAINER)
        self.replace(context, "provenance", lambda commit, more: [("card", ""), *more])
        shards = []
        self.replace(random_shard, "write", shards.append)
        # A length is expected to take 4 x the 30 ms of half of it, measured or left out: 64 steps of 0.12 s at 4096, 32 of 0.48 s at 8192.
        args = self.arguments("--seq", "2048:8192", "--modes", "flash,gelu", "--limit", "5")
        (rows, ok), out, err, _ = self.said(context.measure, args)
        self.assertEqual((set(rows), ok, len(shards)), ({(2048, "flash"), (2048, "gelu")}, True, 1))
        self.assertEqual(err, "".join(f"T = {seq}, {mode}: left out, about {seconds} s; hint: --limit {seconds}\n"
                                      for mode in ("flash", "gelu") for seq, seconds in ((4096, 8), (8192, 15))))
        self.assertEqual(len(out.splitlines()), 3)
        self.assertEqual(set(context.read_rows(args.csv)[0]), set(rows))
        self.assertEqual(context.read_rows(args.csv)[1], ["# card: none", "# timed: 5.5 s a row or more, after 1 s at load"])
        self.assertFalse([name for name in os.listdir(self.folder) if name.startswith("flash")], "runs leave no folder")

    def test_a_row_is_replaced_and_the_users_data_are_taken(self):
        self.trainer(TRAINER)
        self.replace(context, "provenance", lambda commit, more: [])
        self.replace(random_shard, "write", lambda path: self.fail("no random tokens are needed"))
        for steps in ("7", "8"):
            args = self.arguments("--seq", "2048", "--modes", "flash", "--", "--train", "mine.bin", "--steps", steps)
            self.assertTrue(self.said(context.measure, args)[0][1])
        self.assertEqual(len(context.read_rows(args.csv)[0]), 1)
        self.trainer(refusing("no disk", 1))
        rows, ok = self.said(context.measure, args)[0]
        self.assertEqual((len(rows), ok), (1, False))

    def test_what_is_missing(self):
        self.replace(context, "PROGRAM", self.path("none"))
        self.refused("none is missing; hint: make", 2, context.check_program, [])
        self.trainer(TRAINER)
        asked = []
        self.replace(context, "need_card", asked.append)
        context.check_program(["--device", "cpu"])
        self.assertEqual(asked, [])
        context.check_program(["--steps", "7"])
        context.check_program(["--a", "--device", "--b", "cpu"])
        self.assertEqual(len(asked), 2)

    def test_the_program(self):
        self.trainer(refusing("no disk", 1))
        for name, value in (("provenance", lambda commit, more: []), ("check_program", lambda flags: None)):
            self.replace(context, name, value)
        self.replace(random_shard, "write", lambda path: None)
        self.replace(context.importlib.util, "find_spec", lambda name: None)
        self.replace(sys, "argv", ["context.py", "--csv", self.path("x.csv"), "--png", self.path("x.png"), "--seq", "64", "--modes", "flash"])
        self.assertEqual(self.said(context.main)[0], 1)
        self.trainer(TRAINER)
        status, _, err, _ = self.said(context.main)
        self.assertEqual(status, 0)
        self.assertRegex(err, "^note: no plot, matplotlib is not installed")

    def test_without_a_card_nothing_is_written(self):
        self.trainer(TRAINER)
        self.replace(comparison, "first_line", lambda command: "")
        self.replace(sys, "argv", ["context.py", "--csv", self.path("x.csv"), "--png", self.path("x.png")])
        self.refused("no NVIDIA GPU on this machine; hint: -- --device cpu", 2, context.main)
        self.assertFalse(os.path.exists(self.path("x.csv")))

    def test_a_signal_ends_the_trainer_without_a_word_and_leaves_no_folder(self):
        trainer = self.program("trainer", f"#!/bin/sh\n[ $1 = --version ] && exit\necho $$ >{self.folder}/pid\nexec sleep 600\n")
        program = f"import sys; sys.path.insert(0, {SCRIPTS!r}); import context; context.PROGRAM = {trainer!r}; context.end_with(context.main)"
        flags = ["--csv", self.path("x.csv"), "--png", self.path("x.png"), "--seq", "64", "--", "--device", "cpu"]
        os.mkdir(self.path("tmp"))
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([sys.executable, "-B", "-c", program] + flags, env={**os.environ, "TMPDIR": self.path("tmp")},
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            while not (os.path.exists(self.path("pid")) and self.text("pid")):  # the file is there before the number is in it
                self.assertIsNone(process.poll())
                time.sleep(0.02)
            pid = int(self.text("pid"))
            os.unlink(self.path("pid"))
            process.send_signal(number)
            said = [line for line in process.communicate()[1].splitlines() if not line.startswith("note: no plot")]
            self.assertEqual((process.returncode, said, os.listdir(self.path("tmp"))), (128 + number, [], []))
            self.assertFalse(os.path.exists(self.path("x.csv")))
            with self.assertRaises(ProcessLookupError):
                os.kill(pid, 0)

    def test_a_plot_of_nothing(self):
        self.refused("nothing to draw", 1, context.plot, {(1, "flash"): {"ms": ""}}, "x.png")
