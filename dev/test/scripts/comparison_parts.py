"""scripts/comparison.py: flags, units, files, tables."""
import argparse
import math
import os
import signal
import subprocess
import sys
import types

from parts import SCRIPTS, Parts

import comparison


class Flags(Parts):
    def test_integers(self):
        parse = comparison.integers(8, 4096, 8)
        self.assertEqual(parse("64"), [64])
        self.assertEqual(parse("8,4096"), [8, 4096])
        self.assertEqual(parse("1024:4096"), [1024, 2048, 4096])
        self.assertEqual(parse("24:100"), [24, 48, 96])
        self.assertEqual(comparison.integers(1, 1 << 20)("1"), [1])
        for text in ("7", "0", "4104", "8192", "12", "8,12", "64:32", "a", "", "8,", "1:2:3", "2048:8192", "-8"):
            with self.assertRaises(argparse.ArgumentTypeError, msg=text) as raised:
                parse(text)
            self.assertIn(repr(text), str(raised.exception))
        self.assertRegex(str(raised.exception), "each 8 to 4096 and a multiple of 8")

    def test_integer(self):
        parse = comparison.integer(2, 9)
        self.assertEqual([parse("2"), parse("9")], [2, 9])
        for text in ("1", "10", "-2", "2.0", "", "x"):
            with self.assertRaises(argparse.ArgumentTypeError, msg=text):
                parse(text)

    def test_duration(self):
        parse = comparison.duration(0.5, 60)
        self.assertEqual([parse("0.5"), parse("60"), parse("1e1")], [0.5, 60, 10])
        for text in ("0.4", "61", "nan", "inf", "-1", "x", ""):
            with self.assertRaises(argparse.ArgumentTypeError, msg=text):
                parse(text)

    def test_the_trainer_that_is_built(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.assertEqual(comparison.built_trainer(), "./train_gpt2cu")
        self.program("train_gpt2", "")
        self.assertEqual(comparison.built_trainer(), "./train_gpt2")
        self.program("train_gpt2cu", "")
        self.assertEqual(comparison.built_trainer(), "./train_gpt2cu")

    def test_a_complaint_is_one_line(self):
        parser = comparison.Parser(prog="some/where.py")
        parser.add_argument("--n", type=comparison.integer(1, 2))
        self.refused("--n: expected an integer.*hint: where.py --help", 2, parser.parse_args, ["--n", "3"])

    def test_fail(self):
        self.assertEqual(self.said(comparison.fail, "a\n  b")[2:], ("error: a b\n", 2))
        self.assertEqual(self.said(comparison.fail, "a", comparison.EXIT_RUN)[2:], ("error: a\n", 1))


class Units(Parts):
    def test_gib(self):
        for text, value in (("2.5 GiB", 2.5), ("512.0 MiB", 0.5), ("1.0 TiB", 1024), ("1048576 KiB", 1), ("1073741824 B", 1)):
            self.assertEqual(comparison.gib(text), value)
        self.assertTrue(math.isnan(comparison.gib("n/a")), "memory that was not measured")

    def test_split_csv(self):
        reader, comments = comparison.split_csv("# card: x\na,b\n1,2\n# more\n3,4\n")
        self.assertEqual(comments, ["# card: x", "# more"])
        self.assertEqual(list(reader), [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}])
        self.assertEqual(reader.fieldnames, ["a", "b"])


class Provenance(Parts):
    def test_first_line(self):
        self.assertEqual(comparison.first_line(["printf", " one \\ntwo\\n"]), "one")
        self.assertEqual(comparison.first_line(["false"]), "")
        self.assertEqual(comparison.first_line(["sh", "-c", "echo one; exit 3"]), "")
        self.assertEqual(comparison.first_line([self.path("none")]), "")

    def test_commit(self):
        self.replace(comparison, "ROOT", self.folder)
        os.environ["GIT_CEILING_DIRECTORIES"] = os.path.dirname(self.folder)
        self.addCleanup(os.environ.pop, "GIT_CEILING_DIRECTORIES", None)
        self.assertEqual(comparison.commit(), "unknown")
        self.replace(comparison, "first_line", lambda command: "fedcba9" if command[0] == "git" else self.first_line(command))
        self.assertEqual(comparison.commit(), "fedcba9", "the tree's, where make noted none")
        self.file("build/commit", "0123abc\n")
        self.assertEqual(comparison.commit(), "0123abc", "what make noted comes first: it is of the binary")
        self.file("other/commit", "4567def\n")
        self.assertEqual(comparison.commit("other"), "4567def")

    def first_line(self, command):
        """cat of a file of the folder."""
        path = os.path.join(self.folder, command[1])
        return open(path, encoding="utf-8").read().strip() if command[0] == "cat" and os.path.exists(path) else ""

    def test_commit_of_a_program(self):
        self.assertEqual(comparison.commit_of(self.program("x", "#!/bin/sh\necho train_gpt2 0123abc\n")), "0123abc")
        self.assertEqual(comparison.commit_of(self.path("none")), "unknown")

    def test_provenance(self):
        self.replace(comparison, "first_line", lambda command: "")
        self.replace(sys, "argv", [os.path.join(comparison.ROOT, "scripts", "x.py"), "--a", "b *"])
        found = dict(comparison.provenance("0123abc", "a card", ["1"], [("torch", "2")]))
        self.assertRegex(found.pop("date"), r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$")
        self.assertEqual(found, {"card": "a card 1", "commit": "0123abc", "torch": "2", "command": "scripts/x.py --a 'b *'"})
        asked = []
        self.replace(comparison, "first_line", lambda command: asked.append(command) or "measured")
        self.assertEqual(comparison.provenance("0123abc", identities=["GPU-7", "GPU-8"])[0], ("card", "measured; measured"))
        self.assertEqual(asked[0][-2:], ["-i", "GPU-7"])

    def test_the_card_of_a_program(self):
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.addCleanup(lambda: os.environ.pop("CUDA_VISIBLE_DEVICES", None) if before is None else os.environ.update(
            CUDA_VISIBLE_DEVICES=before))
        for visible, number, expected in ((None, 1, "1"), ("4,6", 1, "6"), ("4,6", 0, "4"), ("4", 2, "2"), ("4", None, "4")):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            if visible:
                os.environ["CUDA_VISIBLE_DEVICES"] = visible
            comparison.choose_card(number)
            self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], expected)

    def test_versions(self):
        self.assertEqual(comparison.version_of(["no such package"]), "")

    def test_printable(self):
        self.assertEqual(comparison.printable("a\x1b[2J\u202e b\n c\x9b"), "a?[2J? b c?")

    def test_need_card(self):
        self.replace(comparison, "first_line", lambda command: "")
        self.refused("no NVIDIA GPU on this machine; hint: buy one", 2, comparison.need_card, "buy one")
        self.replace(comparison, "first_line", lambda command: "GPU 0")
        self.assertEqual(self.said(comparison.need_card, "buy one")[2:], ("", None))


class Files(Parts):
    def test_check_output(self):
        self.refused("is a folder", 2, comparison.check_output, self.folder)
        self.refused("no such folder", 2, comparison.check_output, self.path("none", "x.csv"))
        self.assertEqual(self.said(comparison.check_output, self.path("x.csv"))[3], None)

    def test_an_output_takes_its_name_when_it_is_closed(self):
        path = self.file("x.txt", "old")
        output = comparison.Output(path)
        self.assertEqual(os.listdir(self.folder), ["x.txt"])
        output.write("new\n")
        self.assertEqual(sorted(os.listdir(self.folder)), ["x.txt", "x.txt.part"])
        self.assertEqual(self.text("x.txt"), "old")
        output.close()
        self.assertEqual((os.listdir(self.folder), self.text("x.txt")), (["x.txt"], "new\n"))

    def test_an_output_without_a_path_keeps_nothing(self):
        output = comparison.Output(None)
        output.write("x")
        output.close()
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_device_is_written_as_it_is(self):
        output = comparison.Output("/dev/null")
        output.write("x")
        output.close()
        self.assertFalse(os.path.exists("/dev/null.part"))

    def test_a_file_of_somebody_beside_it_stays(self):
        path, mine = self.path("x.txt"), self.file("x.txt.part", "mine")
        for end in (comparison.Output.close, comparison.Output.discard):
            output = comparison.Output(path)
            output.write("new\n")
            self.assertEqual(self.text("x.txt.part1"), "new\n")
            end(output)
            self.assertEqual((sorted(os.listdir(self.folder)), self.text(mine), self.text(path)), (["x.txt", "x.txt.part"], "mine", "new\n"))

    def test_a_link_stays_one(self):
        path = self.file("a/x.txt", "old")
        os.symlink(path, self.path("link.txt"))
        output = comparison.Output(self.path("link.txt"))
        output.write("new\n")
        output.close()
        self.assertEqual((os.readlink(self.path("link.txt")), self.text(path), os.listdir(self.path("a"))), (path, "new\n", ["x.txt"]))

    def test_a_full_disk_ends_the_program_with_1(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        self.refused("/dev/full: cannot be written: No space left", 1, comparison.Output("/dev/full").write, "x")

    def test_a_full_disk_leaves_the_old_file_alone(self):
        """It is named as the user knows it."""
        for name in ("x.html", "x.png"):
            path = self.file(name, "<!DOCTYPE html>" if name == "x.html" else b"\x89PNG")
            begin = os.path.getsize(path)
            program = ("import comparison, sys, types\nfigure = types.SimpleNamespace(savefig=lambda file, **_: file.write(bytes(9999)))\n"
                       "if sys.argv[1].endswith('.png'): comparison.save_picture(figure, sys.argv[1])\n"
                       "else: comparison.Output(sys.argv[1]).write(9999 * ' ')")
            done = self.on_full_disk(sys.executable, "-B", "-c", program, path, cwd=SCRIPTS)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", f"error: {path}: cannot be written: File too large\n"))
            self.assertEqual(os.path.getsize(path), begin)
        self.assertEqual(sorted(os.listdir(self.folder)), ["x.html", "x.png"])


class Pictures(Parts):
    def test_a_picture(self):
        kinds = []

        def draw(error=None):
            def savefig(file, format, dpi):
                kinds.append(format)
                if error:
                    raise error
                file.write(b"new")

            return types.SimpleNamespace(savefig=savefig)

        path = self.path("x.PNG")
        for _ in range(2):
            self.assertEqual(self.said(comparison.save_picture, draw(), path)[1:], (f"{path}\n", "", None))
            self.assertEqual((self.text(path), os.listdir(self.folder)), ("new", ["x.PNG"]))
            self.file("x.PNG", b"\x89PNG, old")
        self.refused("x.gif: no such format", 2, comparison.save_picture, draw(ValueError("no such format")), "x.gif")
        self.assertEqual(kinds, ["png", "png", "gif"])
        self.refused("none/x.png: cannot be written: no such folder", 2, comparison.save_picture, draw(), self.path("none", "x.png"))


class Tables(Parts):
    def test_report(self):
        report = comparison.Report(self.path("x.csv"), self.path("x.md"))

        def fill():
            report.header([("card", "c")])
            report.table("### Title", ["  a", "bb"])
            report.row(["1", "2"])
            report.note("\nfirst")
            report.note("second")
            report.record(a=1, b="x,y")
            report.table("### Next", ["c"])
            report.record(a=2, b="z")
            report.row(["3"])
            report.note("third")
            report.close()

        out = self.said(fill)[1]
        self.assertEqual(out, "card     c\n\n### Title\n  a  bb\n  1   2\n\nfirst\nsecond\n\n### Next\nc\n3\nthird\n")
        self.assertEqual(self.text("x.csv"), "# card: c\na,b\r\n1,\"x,y\"\r\n2,z\r\n")
        self.assertEqual(self.text("x.md"),
                         "- card: c\n\n### Title\n\n| a | bb |\n|---|---|\n| 1 | 2 |\n\nfirst\n\nsecond\n\n### Next\n\n| c |\n|---|\n"
                         "| 3 |\n\nthird\n")
        self.assertEqual(sorted(os.listdir(self.folder)), ["x.csv", "x.md"])


class Ends(Parts):
    PROGRAM = """
import os, sys, time
sys.path.insert(0, %r)
from comparison import end_with
def main():
    try:
        print("ready", flush=True)
        while True:
            time.sleep(0.01)  # one long sleep would miss a signal that comes just before it begins
    finally:
        os.kill(os.getpid(), %d)  # a second signal while what is open is closed
        print("closed", flush=True)
end_with(main)
"""

    def test_a_signal_ends_in_order_and_a_second_one_does_not_break_that_off(self):
        for first, second in ((signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)):
            process = subprocess.Popen([sys.executable, "-B", "-c", self.PROGRAM % (SCRIPTS, second)], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.send_signal(first)
            out, err = process.communicate(timeout=600)
            self.assertEqual((process.returncode, out, err), (128 + first, "closed\n", ""))

    def test_a_signal_waits_while_something_begins(self):
        said = []
        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
            signal.signal(number, lambda number, _: said.append(number))
            with comparison.uninterrupted():
                os.kill(os.getpid(), number)
                said.append("begun")
        self.assertEqual(said, ["begun", signal.SIGINT, "begun", signal.SIGTERM])

    def test_what_main_returns_is_the_exit_code(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.assertEqual(self.said(comparison.end_with, lambda: 7)[3], 7)
