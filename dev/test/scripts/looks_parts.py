"""scripts/run_log.py, plot.py, report.py, to_tensorboard.py: what a log says, and what is made of it, with stand-ins for matplotlib
and TensorBoard's package."""
import errno
import html.parser
import json
import os
import signal
import sys
import types

from parts import Parts

import comparison
import plot
import report
import run_log
import to_tensorboard


def step(number, loss=2.0, **more):
    return {"step": number, "loss": loss, "lr": 0.1, "norm": 1.0, "ms": 500.0, "tok_s": 20.0, "memory": 1 << 30, **more}


def header(first_step=0, tokens=10, flags=(), **more):
    return {"run": {"first_step": first_step, "flags": {"tokens-per-step": tokens, **dict(flags)}, **more}}


def stand_in(test, **modules):
    """Modules of these names, dots as two underscores, until the test ends."""
    for name, values in modules.items():
        module = types.ModuleType(name.replace("__", "."))
        vars(module).update(values)
        test.addCleanup(sys.modules.pop, module.__name__, None)
        sys.modules[module.__name__] = module


class Logs(Parts):
    def log(self, *rows, name="log.jsonl", end=""):
        """Writes a log of rows; returns its path."""
        return self.file(name, "".join(json.dumps(row) + "\n" for row in rows) + end)


class Read(Logs):
    def test_the_kinds(self):
        path = self.log(header(), step(1), {"step": 1, "val_loss": 3}, {"step": 1, "sample": "a\u2028b"}, {"note": "of a later version"},
                        {"step": 1, "acc_norm": 0.3, "acc": 0.25, "items": 4}, {"step": 1, "checkpoint": "step_1", "seconds": 0.5},
                        {"step": 2, "save_failed": "why"}, step(2, None), end='{"step": 3, "lo')
        log = run_log.read_log(path)
        self.assertEqual(len(log.headers), 1)
        self.assertEqual(log.points("steps", "loss"), [(1, 2.0)], "a null loss, half a line at the end")
        self.assertEqual(log.points("vals", "val_loss"), [(1, 3)])
        self.assertEqual([log.samples[0]["sample"], log.saves[0]["checkpoint"], log.failed_saves[0]["save_failed"]], ["a\u2028b", "step_1", "why"])
        self.assertEqual((log.scores[0]["acc_norm"], log.median("lr"), log.median("none")), (0.3, 0.1, None))
        self.assertEqual(len(run_log.read_log(self.folder).steps), 2, "a run's folder")
        torn = run_log.read_log(self.log(header(), step(1), end='{"step": 2, "sample": "{}\n{"st\n{"step": 2, "val_loss": 3}\n'))
        self.assertEqual((len(torn.steps), torn.points("vals", "val_loss")), (1, [(2, 3)]), "half a line that the trainer has ended")
        self.assertEqual(len(run_log.read_log(self.file("log.jsonl", b'{"step": 1, "loss": 2.5}\n{"step": 1, "sample": "\xc3')).steps), 1, "half a letter")
        self.assertEqual(len(run_log.read_log(self.file("log.jsonl", b'{"step": 1, "loss": 2.5}\n' + bytes(64))).steps), 1, "zeros")

    def test_an_evaluation_is_no_point_of_the_curve(self):
        line = '{"step": 2, "val_loss": 9.5, "evaluated": "other.txt"}'
        self.assertIsNone(run_log.parse(line))
        self.assertIsNone(run_log.parse(line.replace("val_loss", "acc_norm")))
        with self.assertRaises(ValueError):
            run_log.parse(line.replace('"other.txt"', "7"))

    def test_what_is_no_log(self):
        for line in ("[1]", "{1}", "[" * 100000, '{"loss": 1}', '{"step": -1, "loss": 1}', '{"step": "a", "loss": 1}', '{"step": 1, "loss": "x"}',
                     '{"step": true, "loss": 1}', '{"run": 1}', '{"run": {"first_step": "1"}}', '{"step": 1, "loss": 1, "lr": []}', "x"):
            self.file("log.jsonl", '{"step": 1, "loss": 2.5}\n' + line + "\n")
            self.refused("log.jsonl:2: expected a line of a log.jsonl, found ", 2, run_log.read_log, self.path("log.jsonl"))
        self.refused("/x: No such file", 2, run_log.read_log, self.path("x"))
        self.refused("no step in it$", 2, run_log.read_log, self.file("log.jsonl", ""))
        self.refused("no step in it; hint: the run has only begun", 2, run_log.read_log, self.log(header()))
        self.refused("log.jsonl:1: expected a line of a log.jsonl, found ", 2, run_log.read_log, self.file("log.jsonl", b"\xff\xfe"))

    def test_tokens_and_time(self):
        log = run_log.read_log(self.log(header(), step(1), step(2), header(2, 100), step(3), header(3, 1000), step(4, ms=None)))
        self.assertEqual([log.tokens_at(n) for n in range(6)], [0, 10, 20, 120, 1120, 2120])
        self.assertEqual([log.seconds_at(n) for n in range(6)], [0, 0.5, 1, 1.5, 1.5, 1.5])
        again = run_log.read_log(self.log(header(), step(1), header(4, 100), header(2, 1000), step(3)))
        self.assertEqual([again.tokens_at(n) for n in range(6)], [0, 10, 20, 1020, 2020, 3020], "resumed from an earlier step")
        thin = run_log.read_log(self.log({"card": "x"}, step(1), step(10), {"step": 10, "val_loss": 2}))
        self.assertEqual((thin.knows_tokens(), thin.knows_time(), thin.seconds_at(10)), (False, True, 5.0))

    def test_names(self):
        paths = [self.log(step(1), name=name) for name in ("a/x/log.jsonl", "b/x/log.jsonl", "b/x/log.1.jsonl", "c=d/log.jsonl")]
        folders = [os.path.dirname(path) for path in paths]
        self.assertEqual([log.name for log in run_log.read_logs([folders[0], f"mine={paths[1]}"])], ["x", "mine"])
        self.assertEqual([log.name for log in run_log.read_logs([folders[0], paths[1], paths[2]])],
                         [os.path.join("a", "x"), os.path.join("b", "x"), os.path.join("b", "x", "log.1.jsonl")])
        self.assertEqual([log.name for log in run_log.read_logs([folders[3]])], ["c=d"], "a path with '='")
        self.refused("log.jsonl: given twice", 2, run_log.read_logs, [folders[0], paths[0]])
        self.refused("two runs are named y; hint: NAME=PATH", 2, run_log.read_logs, [f"y={paths[0]}", f"y={paths[1]}"])


class Plot(Logs):
    def test_smooth(self):
        points = [(1, 4.0), (2, 2.0), (3, 6.0), (4, 8.0)]
        self.assertEqual(plot.smooth(points, 1), points)
        self.assertEqual(plot.smooth(points, 2), [(1, 4.0), (2, 3.0), (3, 4.0), (4, 7.0)])
        self.assertEqual(plot.smooth(points, 9), [(1, 4.0), (2, 3.0), (3, 4.0), (4, 5.0)])

    def test_axes(self):
        log = run_log.read_log(self.log(header(), *[step(n, ms=1.8e6) for n in range(1, 5)]))
        other = run_log.read_log(self.log(step(1)))
        for logs, panel, label, x in (([log], "loss", "tokens", 40), ([log], "time", "training time, minutes", 120),
                                      ([log, other], "loss", "step", 4)):
            found, at = plot.x_axis(logs, panel)
            self.assertEqual((found, at(log, 4)), (label, x))
        self.assertEqual(plot.curve(log, "memory", plot.x_axis([log], "memory")[1])[-1], (40, 1.0))
        self.assertEqual([plot.count(n) for n in (0, 999, 25e3, 1.5e6, 1e10, 3e12)], ["0", "999", "25 k", "1.5 M", "10 B", "3 T"])

    def test_what_the_height_is_for(self):
        log = run_log.read_log(self.log(*[step(n, 11.0 if n < 10 else 4.0 if n < 50 else 3.0) for n in range(1, 201)]))
        self.assertEqual(plot.highest_shown([log], 1), 4.0)
        self.assertIsNone(plot.highest_shown([run_log.read_log(self.log(step(1, 9.0)))], 1), "a short run is shown whole")
        self.assertEqual((plot.averaged([log], None), plot.averaged([log], 1)), (", mean of 2 steps", ""))

    def draw(self, *words):
        """What plot.py draws with these words: [(x, y) of each line], and the panels' titles."""
        lines, titles, saved = [], [], []
        self.styles, self.labels = set(), []

        test = self

        class Anything:
            def __getattr__(self, name):
                if name == "plot":
                    return lambda x, y, style="-", **_: lines.append((tuple(x), tuple(y))) or test.styles.add(style)
                return {"set_title": lambda title, **_: titles.append(title), "savefig": lambda file, format, **_: saved.append(format) or file.write(b"<?xml")}.get(
                    name, Anything())

            def __call__(self, *_, **__):
                return Anything()

        stand_in(self, matplotlib={"use": lambda name: None}, matplotlib__pyplot={
            "subplots": lambda rows, columns, **_: (Anything(), [[Anything() for _ in range(columns)] for _ in range(rows)]),
            "Line2D": lambda *_, label, **known: self.labels.append(label) or types.SimpleNamespace(get_label=lambda: label)})
        out = self.path("x\udcff.svg")
        self.replace(sys, "argv", ["plot.py", *words[:-1], "--out", out, words[-1]])
        self.assertEqual(self.said(plot.main)[1:], (self.path("x?.svg\n"), "", None))
        self.assertEqual((saved, self.text(out)), (["svg"], "<?xml"))
        return lines, titles

    def test_drawn(self):
        path = self.log(header(), step(1, 4.0), step(2, 2.0, lr=0.3), {"step": 2, "val_loss": 3})
        x = (10, 20)
        lines, titles = self.draw("--smooth", "2", path)
        self.assertEqual(lines, [(x, (4, 2)), (x, (4, 3)), ((20,), (3,)), ((0.5, 1.0), (4, 2)), ((0.5, 1.0), (4, 3)), ((1.0,), (3,)),
                                 (x, (0.1, 0.3)), (x, (1, 1)), (x, (1, 1)), (x, (20, 20)), (x, (20, 20)), (x, (1, 1))])
        self.assertEqual(titles, [title for title, *_ in plot.PANELS.values()])

    def test_a_step_alone_is_a_dot(self):
        self.draw("--panels", "loss", self.log(step(1)))
        self.assertEqual(self.styles, {"."})
        self.draw("--panels", "loss", self.log(step(1), step(2)))
        self.assertEqual(self.styles, {"-"})

    def test_the_legend(self):
        self.draw(f"cost $1, $2={self.log(step(1))}", f"\udcff\nb={self.log(step(1), name='other')}",
                  f"{70 * 'x'}={self.log(step(1), name='third')}")
        self.assertEqual(self.labels[:3], [r"cost \$1, \$2", "? b", "..." + 57 * "x"], "no formula, one line, an end")

    def test_one_panel(self):
        lines, titles = self.draw("--panels", "loss", self.log({"step": 5, "val_loss": 3}))
        self.assertEqual((lines, titles), ([((5,), (3,))], ["loss, nats a token"]))


class Report(Logs):
    def report(self, *rows):
        return run_log.read_log(self.log(*rows))

    def test_figures(self):
        log = self.report(header(flags={"steps": 4}), *[step(n, 5.0 - n, mfu=0.1 * n, memory=n << 20, ms=1e3) for n in range(1, 5)],
                          {"step": 2, "val_loss": 1.5}, {"step": 4, "val_loss": 1.75}, {"step": 4, "acc_norm": 0.3, "acc": 0.25, "items": 9})
        self.assertEqual(dict(report.figures(log)), {
            "steps": "4 of 4", "tokens": "40 (40)", "training loss, last step": "1.0000", "validation loss, last": "1.7500 (step 4)",
            "validation loss, lowest": "1.5000 (step 2)", "HellaSwag, step 4": "acc_norm 0.3000, acc 0.2500",
            "training time": "4.0 s, without validation, samples and saves", "speed, median step": "20 tokens/s",
            "MFU, median step": "25.0 %", "memory, highest": "4.0 MiB"})
        bare = dict(report.figures(self.report({"step": 3, "loss": None}, {"step": 7, "val_loss": 2})))
        self.assertEqual([bare[name] for name in ("steps", "training loss, last step", "speed, median step", "memory, highest")],
                         ["7", "not known", "not known", "not in the log"])
        nan = dict(report.figures(self.report(step(1, 3.0), step(2, None))))
        self.assertEqual(nan["training loss, last step"], "not known", "of no earlier step")
        self.assertEqual([report.duration(s) for s in (12.34, 200, 3720)], ["12.3 s", "3 min 20 s", "1 h 02 min"])

    def test_warnings(self):
        log = self.report(header(flags={"steps": 9}, version="v 1-modified"), step(1), {"step": 1, "val_loss": 1.0},
                          {"step": 1, "checkpoint": "step_1", "seconds": 1}, header(1, flags={"steps": 9}, version="v 2"),
                          step(2, skipped=3), {"step": 2, "save_failed": "no space"}, {"step": 2, "val_loss": 1.1})
        self.assertEqual([text.split(":")[0] for text in report.warnings(log)], [
            "The run stands at step 2 of 9", "3 updates were skipped", "The save of step 2 failed",
            "The validation loss rose from 1.0000 (step 1) to 1.1000", "The newest checkpoint is that of step 1, 1 steps before the log's end.",
            "The program was built from sources that are in no commit (-modified).", "The run was resumed by another build"])
        other = self.report(header(flags={"val": "a"}), step(1), {"step": 1, "val_loss": 1.0}, header(1, flags={"val": "b"}), step(2),
                            {"step": 2, "val_loss": 3.0}, {"step": 2, "checkpoint": "step_2", "seconds": 1})
        self.assertEqual(report.warnings(other), ["Other data validates from step 1 on: losses before it do not compare."])
        self.assertEqual(dict(report.figures(other))["validation loss, lowest"], "3.0000 (step 2)")
        begun = self.report(header(flags={"val": "a"}), step(1), {"step": 1, "val_loss": 1.0}, header(1, flags={"val": "b"}), step(2),
                            {"step": 2, "checkpoint": "step_2", "seconds": 1})
        self.assertEqual(report.warnings(begun), ["Other data validates from step 1 on: losses before it do not compare."])
        good = self.report(header(flags={"steps": 1}, version="v 1"), step(1, skipped=0), {"step": 1, "val_loss": 1.0},
                           {"step": 1, "checkpoint": "step_1", "seconds": 1})
        self.assertEqual(report.warnings(good), [])
        self.assertEqual([text[:22] for text in report.warnings(self.report(step(1)))], ["The log has no header:", "Nothing was validated.", "No checkpoint is in th"])

    def test_the_page(self):
        seen = []
        self.replace(report, "figure", lambda logs: types.SimpleNamespace(savefig=lambda out, **_: seen.append(logs) or out.write(b"PNG")))
        path = self.log(header(flags={"steps": 1, "lr": 0.5, "resume": False, "out": None}, argv=["./t", "--lr=0.5"], version="v 1", model="<nano>",
                               parameters=25000, date="today", tokenizer={"name": "bytes"}), step(1), {"step": 1, "val_loss": 1.0},
                        {"step": 1, "sample": "first"}, {"step": 1, "sample": "a <b>\u202e\x1b\n& c"},
                        header(1, argv=["./t", "--lr=1", "--train", "a b*"], flags={"lr": 1}))
        out = self.path("page.html")
        self.replace(sys, "argv", ["report.py", "--out", out, f"my & run={path}"])
        self.assertEqual(self.said(report.main)[1:], (f"{out}\n", "", None))
        text, tags = self.text("page.html"), []
        checked = html.parser.HTMLParser()
        checked.handle_starttag = lambda tag, _: tag in ("meta", "img") or tags.append(tag)
        checked.handle_endtag = lambda tag: self.assertEqual(tags.pop(), tag)
        checked.feed(text)
        self.assertEqual(tags, [], "every element is closed")
        for part in ("<h1>my &amp; run</h1>", "data:image/png;base64,UE5H", "&lt;nano&gt;, 25 k parameters", "<pre>a &lt;b&gt;??\n&amp; c</pre>",
                     "./t --lr=1 --train &#x27;a b*&#x27;",
                     "<summary>1 before it</summary><h3>step 1</h3><pre>first</pre>", "from step 1, by None"):
            self.assertIn(part, text)
        self.assertEqual([log.name for logs in seen for log in logs], ["my & run"])
        self.assertEqual(report.settings(run_log.read_log(path)), ([("--lr", 1)], [("--tokens-per-step", 10)]))
        self.assertNotIn("http", text, "nothing is fetched")
        self.replace(sys, "argv", ["report.py", "--out", self.path("\udcff.html"), path])
        self.assertEqual(self.said(report.main)[1:], (self.path("?.html\n"), "", None), "a path that is no UTF-8")
        self.replace(sys, "argv", ["report.py", "--out", out, path])
        log = self.log(step(1), name="log.html")
        os.symlink(log, self.path("link.png"))
        for main, words in ((report.main, ["report.py", "--out", log, log]), (plot.main, ["plot.py", "--out", self.path("link.png"), path])):
            self.replace(sys, "argv", words)
            self.assertIn(f"{words[2]}: is there, and not what its name says", self.said(main)[2])
            self.assertIn('"loss"', self.text("log.html"), "neither a page nor a picture takes a log's place")

    def test_a_long_table(self):
        text = report.table([(str(n), "x") for n in range(100)], ("a", "b"))
        self.assertEqual((text.count("<tr>"), text.count("60 more"), "<td>19</td>" in text, "<td>20</td>" in text, "<td>80</td>" in text),
                         (42, 1, True, False, True))


class TensorBoard(Logs):
    def setUp(self):
        super().setUp()
        writers = self.writers = []

        class Message(types.SimpleNamespace):
            START = 1

            def SerializeToString(self):
                return self

        class Writer:
            """Keeps the events but the first, the version; the file has a byte for each."""

            def __init__(self, file):
                writers.append(self)
                self.events, self.file = [], file

            def write(self, event):
                self.events += [event] if hasattr(event, "step") else []
                self.file.write(b"." if hasattr(event, "step") else b"v")

        class Summary(Message):
            Value = Message

        class Metadata(Message):
            PluginData = Message

        stand_in(self, tensorboard__compat__proto__event_pb2={"Event": Message, "SessionLog": Message},
                 tensorboard__compat__proto__summary_pb2={"Summary": Summary, "SummaryMetadata": Metadata},
                 tensorboard__compat__proto__tensor_pb2={"TensorProto": Message},
                 tensorboard__summary__writer__record_writer={"RecordWriter": Writer})

    def written(self, *names):
        """What the event file of a run holds; there is no other."""
        (name,) = [name for name in os.listdir(self.path("runs", *names)) if name.endswith(".from_log")]
        return self.text("runs", *names, name)

    def convert(self, *words):
        self.replace(sys, "argv", ["to_tensorboard.py", *words[:-1], "--out", self.path("runs"), words[-1]])
        return self.said(to_tensorboard.main)

    def scalars(self, writer):
        """{(tag, step): value}, in the order of the events."""
        return {(value.tag, event.step): value.simple_value for event in writer.events if hasattr(event, "summary")
                for value in event.summary.value if hasattr(value, "simple_value")}

    def test_the_events(self):
        path = self.log(header(date="1970-01-02T00:00:00Z", argv=["./t", "--train", "my text|*.txt"]), step(1),
                        {"step": 1, "val_loss": 2.5}, step(2, None, skipped=1),
                        {"step": 2, "sample": "x\ny"}, header(2, date="1970-01-03T00:00:00Z"), end='{"step": 3, "lo\n')
        with open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps(step(3)) + '\n{"step": 4')
        _, out, err, code = self.convert(f"mine={path}")
        self.assertEqual((out, err, code), (f"{self.path('runs')}: mine; to look at it: tensorboard --logdir {self.path('runs')}\n", "", None))
        (writer,) = self.writers
        scalars = self.scalars(writer)
        self.assertEqual([scalars.get(key) for key in (("loss/train", 1), ("loss/train", 2), ("loss/validation", 1), ("memory/gib", 3),
                                                       ("training/skipped_updates", 2), ("speed/tokens_per_second", 3))], [2, None, 2.5, 1, 1, 20])
        self.assertEqual([(event.step, event.wall_time) for event in writer.events], [
            (0, 86400), (1, 86400.5), (1, 86400.5), (2, 86401), (2, 86401), (3, 172800), (2, 172800), (3, 172800.5)])
        texts = [(event.summary.value[0].tag, event.summary.value[0].tensor.string_val[0].decode()) for event in writer.events
                 if hasattr(event, "summary") and hasattr(event.summary.value[0], "tensor")]
        self.assertIn(("sample", "    x\n    y\n"), texts)
        self.assertIn("| command | `./t --train 'my text/*.txt'` |", texts[0][1])
        self.assertEqual([event.step for event in writer.events if hasattr(event, "session_log")], [3], "what follows takes the place of later steps")
        self.assertEqual((self.written("mine"), len(os.listdir(self.path("runs", "mine")))), ("v........", 1))

    def test_a_second_call(self):
        path = self.log(step(1))
        keep = self.file("runs/mine/events.out.tfevents.of.another", "")
        self.file("runs/mine/events.out.tfevents.1.from_log", "of an earlier call")
        for _ in range(2):
            self.convert(f"mine={path}")
        self.assertEqual((self.written("mine"), len(os.listdir(self.path("runs", "mine"))), os.path.exists(keep)), ("v.", 2, True))
        self.assertEqual(self.convert(self.log(step(1), name="x/log.jsonl", end="[]\n"))[2:],
                         (f"error: {self.path('x', 'log.jsonl')}:2: expected a line of a log.jsonl, found '[]'\n", 2))
        self.assertRegex(self.convert(self.path("none"))[2], "none: No such file")
        self.assertRegex(self.convert(self.log(header(), name="y/log.jsonl"))[2], "no step in it; hint: the run has only begun")

    def test_a_damaged_log_writes_nothing(self):
        good, bad = self.log(step(1), name="good/log.jsonl"), self.log(step(1), name="bad/log.jsonl", end="[]\n")
        self.convert(f"bad={good}")
        before = os.listdir(self.path("runs", "bad"))
        self.assertEqual(self.convert(f"good={good}", f"bad={bad}")[3], 2)
        self.assertEqual((os.listdir(self.path("runs")), os.listdir(self.path("runs", "bad"))), (["bad"], before))

    def full_disk(self, at, error=errno.ENOSPC):
        """Files take no more than these bytes."""
        def limited(path, binary):
            file = comparison.beside(path, binary)

            class Full:
                name, close, flush = file.name, file.close, file.flush

                def write(self, data):
                    file.write(bytes(data)[:max(0, at - file.tell())])
                    file.flush()
                    if file.tell() == at:
                        raise OSError(error, os.strerror(error))

            return Full()

        self.replace(to_tensorboard, "beside", limited)

    def test_a_full_disk(self):
        path, folder = self.log(*[step(n) for n in range(1, 9)]), self.path("runs", "mine")
        self.convert(f"mine={self.log(step(1), name='short.jsonl')}")
        before = os.listdir(folder)
        self.full_disk(5)
        for name in ("mine", "other"):
            self.assertEqual(self.convert(f"{name}={path}")[1:],
                             ("", f"error: {self.path('runs', name)}: cannot be written: No space left on device\n", 1))
        self.assertEqual((os.listdir(self.path("runs")), os.listdir(folder), self.written("mine")), (["mine"], before, "v."))
        self.full_disk(5, errno.EACCES)
        self.assertEqual(self.convert(f"mine={path}")[3], 2)

    def test_a_disk_that_is_full_later(self):
        path = self.log(step(1), step(2))
        self.full_disk(5)
        source = to_tensorboard.Source("a", path, self.path("runs"))
        source.read()
        self.log(*[step(n) for n in range(1, 9)])
        self.refused("runs/a: cannot be written: No space left", 1, source.follow)
        self.assertEqual((self.written("a"), len(os.listdir(self.path("runs", "a")))), ("v..", 1), "half an event goes")

    def test_a_name_that_is_no_utf8(self):
        self.assertEqual(self.convert(f"a\udcff={self.log(step(1))}")[2:],
                         (f"error: {self.path('runs', 'a?')}: expected a path in UTF-8, the package tensorboard takes no other; "
                          "hint: NAME=RUN, --out DIR\n", 2))
        self.assertFalse(os.path.exists(self.path("runs")))

    def test_without_the_package(self):
        del sys.modules["tensorboard.compat.proto.event_pb2"]
        self.replace(sys, "path", [])
        self.assertRegex(self.convert(self.log(step(1)))[2], "^error: the package tensorboard cannot be imported .*; hint: pip install tensorboard\n$")

    def test_followed(self):
        path = self.log(header(), step(1), step(2), step(3), end='{"step": 4, "lo')
        source = to_tensorboard.Source("a", path, self.path("runs"))
        (writer,) = self.writers
        losses = lambda: {number: value for (tag, number), value in self.scalars(writer).items() if tag == "loss/train"}
        source.read()
        self.log(header(), step(1), step(2), step(3), step(4, 4.0))  # the same file, its half line whole
        source.follow()
        self.assertEqual((losses(), self.written("a")), ({1: 2, 2: 2, 3: 2, 4: 4}, "v....."))
        os.replace(self.log(header(), step(1), step(2), name="new"), path)  # cut back to step 2, before its new header
        n_events = len(writer.events)
        source.follow()
        self.assertEqual(len(writer.events), n_events, "old lines are not taken again")
        self.log(header(), step(1), step(2), header(2), step(3, 7.0))
        source.follow()
        self.assertEqual(losses(), {1: 2, 2: 2, 3: 7, 4: 4})
        self.assertEqual([event.step for event in writer.events if hasattr(event, "session_log")], [3])
        self.assertEqual(source.log.seconds_at(9), 1.5, "steps that were taken back took no time")
        os.replace(self.log(header(tokens=11), step(1), name="new"), path)
        self.refused("is the log of another run now", 1, source.follow)

    def test_the_end(self):
        self.replace(to_tensorboard.time, "sleep", lambda _: os.kill(os.getpid(), signal.SIGTERM))  # once it waits for more
        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.assertEqual(self.convert("--follow", self.log(step(1)))[2:], ("", None))
