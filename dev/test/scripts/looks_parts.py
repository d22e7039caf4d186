"""scripts/run_log.py and plot.py: what a log says, and what is drawn of it, with a stand-in for matplotlib."""
import json
import os
import sys
import types

from parts import Parts

import plot
import run_log


def step(number, loss=2.0, **more):
    return {"step": number, "loss": loss, "lr": 0.1, "norm": 1.0, "ms": 500.0, "tok_s": 20.0, "memory": 1 << 30, **more}


def header(first_step=0, tokens=10, **more):
    return {"run": {"first_step": first_step, "flags": {"tokens-per-step": tokens}, **more}}


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

    def test_what_is_no_log(self):
        for line in ("[1]", "{", '{"loss": 1}', '{"step": -1, "loss": 1}', '{"step": "a", "loss": 1}', '{"step": 1, "loss": "x"}',
                     '{"step": true, "loss": 1}', '{"step": 1, "loss": 1, "lr": []}', "x"):
            self.file("log.jsonl", '{"step": 1, "loss": 2.5}\n' + line + "\n")
            self.refused("log.jsonl:2: expected a line of a log.jsonl, found ", 2, run_log.read_log, self.path("log.jsonl"))
        self.refused("/x: No such file", 2, run_log.read_log, self.path("x"))
        self.refused("no step in it$", 2, run_log.read_log, self.file("log.jsonl", ""))
        self.refused("no step in it; hint: the run has only begun", 2, run_log.read_log, self.log(header()))
        self.refused("found no text", 2, run_log.read_log, self.file("log.jsonl", b"\xff\xfe"))

    def test_tokens_and_time(self):
        log = run_log.read_log(self.log(header(), step(1), step(2), header(2, 100), step(3), header(3, 1000), step(4, ms=None)))
        self.assertEqual([log.tokens_at(n) for n in range(6)], [0, 10, 20, 120, 1120, 2120])
        self.assertEqual([log.seconds_at(n) for n in range(6)], [0, 0.5, 1, 1.5, 1.5, 1.5])
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

        class Anything:
            def __getattr__(self, name):
                if name == "plot":
                    return lambda x, y, *_, **__: lines.append((tuple(x), tuple(y)))
                return {"set_title": lambda title, **_: titles.append(title), "savefig": lambda path, **_: saved.append(path)}.get(
                    name, Anything())

            def __call__(self, *_, **__):
                return Anything()

        plots = types.ModuleType("matplotlib.pyplot")
        plots.subplots = lambda rows, columns, **_: (Anything(), [[Anything() for _ in range(columns)] for _ in range(rows)])
        plots.Line2D = lambda *_, **__: None
        library = types.ModuleType("matplotlib")
        library.use, library.pyplot = lambda name: None, plots
        for name, module in (("matplotlib", library), ("matplotlib.pyplot", plots)):
            self.addCleanup(sys.modules.pop, name, None)
            sys.modules[name] = module
        out = self.path("x.svg")
        self.replace(sys, "argv", ["plot.py", "--out", out, *words])
        self.assertEqual(self.said(plot.main)[1:], (f"{out}\n", "", None))
        self.assertEqual(saved, [out])
        return lines, titles

    def test_drawn(self):
        path = self.log(header(), step(1, 4.0), step(2, 2.0, lr=0.3), {"step": 2, "val_loss": 3})
        x = (10, 20)
        lines, titles = self.draw("--smooth", "2", path)
        self.assertEqual(lines, [(x, (4, 2)), (x, (4, 3)), ((20,), (3,)), ((0.5, 1.0), (4, 2)), ((0.5, 1.0), (4, 3)), ((1.0,), (3,)),
                                 (x, (0.1, 0.3)), (x, (1, 1)), (x, (1, 1)), (x, (20, 20)), (x, (20, 20)), (x, (1, 1))])
        self.assertEqual(titles, [title for title, *_ in plot.PANELS.values()])

    def test_one_panel(self):
        lines, titles = self.draw("--panels", "loss", self.log({"step": 5, "val_loss": 3}))
        self.assertEqual((lines, titles), ([((5,), (3,))], ["loss, nats a token"]))
