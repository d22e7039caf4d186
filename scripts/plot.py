#!/usr/bin/env python3
"""Draws runs from their logs, one or several in one picture.

usage: plot.py [--out plot.png] [--smooth N] [--panels loss,time,lr,norm,speed,memory] [--whole] [NAME=]RUN ...

RUN is a run's folder (--out) or a log.jsonl. A resumed run is one curve: the log holds every step once. The picture's kind goes by
the path's end: .png, .svg, .pdf. Loss, norm and tokens/s are means over N steps, the values themselves a thin line behind; validation
has dots. Losses begin at the end of the first twentieth of the shortest run; --whole: at the first step. time: the sum of the steps'
times, without validation, saves and pauses. Needs matplotlib. Exit 2 on a file that is no log, naming the line.
"""
import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ctrl-C ends the imports without a traceback; from end_with() on in order

import argparse
import os

from comparison import Parser, check_output, end_with, fail, integer, printable, pyplot, save_picture
from run_log import read_logs

ENDS = (".png", ".svg", ".pdf")
LONGEST_NAME = 60  # of a run, in the legend
SMOOTHED = 100  # points that a curve keeps of its detail where --smooth is not given
GIB = 1 << 30
# name: (title, rows, field, scale of a value)
PANELS = {"loss": ("loss, nats a token", "steps", "loss", 1), "time": ("loss, nats a token", "steps", "loss", 1),
          "lr": ("learning rate", "steps", "lr", 1), "norm": ("gradient norm", "steps", "norm", 1),
          "speed": ("tokens/s", "steps", "tok_s", 1), "memory": ("device memory, GiB", "steps", "memory", 1 / GIB)}
LOSSES, EXACT = ("loss", "time"), ("lr", "memory")  # panels with validation; those that no mean is taken of


def smooth(points, n):
    """Mean over the last n points at each point."""
    result, total = [], 0.0
    for i, (x, value) in enumerate(points):
        total += value - (points[i - n][1] if i >= n else 0.0)
        result.append((x, total / min(i + 1, n)))
    return result


def time_unit(logs):
    """(name, seconds) of the largest unit in which the longest run takes more than two."""
    longest = max(log.seconds_at(float("inf")) for log in logs)
    return next((unit for unit in (("days", 86400), ("hours", 3600), ("minutes", 60)) if longest > 2 * unit[1]), ("seconds", 1))


def x_axis(logs, panel):
    """(label, function (log, step) -> x): the time; tokens where all logs tell them, else steps."""
    if panel == "time":
        unit, seconds = time_unit(logs)
        return f"training time, {unit}", lambda log, step: log.seconds_at(step) / seconds
    if all(log.knows_tokens() for log in logs):
        return "tokens", lambda log, step: log.tokens_at(step)
    return "step", lambda log, step: step


def curve(log, panel, at, rows=None, field=None):
    """[(x, value)] of a panel, or of other rows and another field."""
    _, own_rows, own_field, scale = PANELS[panel]
    if panel == "time" and not log.knows_time():
        return []
    return [(at(log, step), value * scale) for step, value in log.points(rows or own_rows, field or own_field)]


def steps_to_average(log, n):
    """--smooth, or what leaves SMOOTHED means of a run."""
    return n or max(1, len(log.steps) // SMOOTHED)


def averaged(logs, n):
    """', mean of 5 steps': what the legend says of training."""
    most = [steps_to_average(log, n) for log in logs]
    if max(most) == 1:
        return ""
    return f", mean of {max(most)} steps" if min(most) == max(most) else f", means of {min(most)} to {max(most)} steps"


def highest_shown(logs, n):
    """The loss at which the panels of losses end: that of a twentieth of the shortest run, of the run where it is highest. None:
    all is shown."""
    ends = [log.steps[-1]["step"] for log in logs if log.steps]
    if not ends or min(ends) < 40:
        return None
    losses = []
    for log in logs:
        points = smooth(log.points("steps", "loss"), steps_to_average(log, n)) + log.points("vals", "val_loss")
        losses += [max((loss for step, loss in points if step >= min(ends) / 20), default=0.0)]
    return max(losses) or None


def count(value, _=None):
    """'250 k', '10 B': tokens as people say them."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g} {letter}"
    return f"{value:.4g}"


def draw_steps(axes, points, color, n):
    """Values of steps: their mean over n, the values themselves a thin line behind it."""
    if points and n > 1:
        axes.plot(*zip(*points), color=color, linewidth=0.5, alpha=0.25)
    if points:
        axes.plot(*zip(*smooth(points, n)), "." if len(points) == 1 else "-", color=color, linewidth=1.1)


def draw_run(axes, log, color, panel, at, n):
    """A run in a panel; returns its values."""
    points = curve(log, panel, at)
    draw_steps(axes, points, color, 1 if panel in EXACT else n)
    val = sorted(curve(log, panel, at, "vals", "val_loss")) if panel in LOSSES else []
    if val:
        axes.plot(*zip(*val), "o--", color=color, markersize=3.5 if len(val) < 40 else 2, linewidth=0.8)
    return [value for _, value in points + val]


def draw_panel(axes, logs, colors, panel, smoothing, highest):
    """One panel with all runs."""
    label, at = x_axis(logs, panel)
    values = []
    for log, color in zip(logs, colors):
        values += draw_run(axes, log, color, panel, at, steps_to_average(log, smoothing))
    axes.set_title(PANELS[panel][0], fontsize=10)
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)
    if label == "tokens":
        axes.xaxis.set_major_formatter(count)
    if not values:
        axes.text(0.5, 0.5, "not in the log", transform=axes.transAxes, ha="center", va="center", color="gray")
        return
    if panel in LOSSES and highest and min(values) < highest:
        margin = 0.04 * (highest - min(values))
        axes.set_ylim(min(values) - margin, highest + margin)
    if panel == "norm":
        axes.set_yscale("log")
    if panel in ("speed", "memory"):
        axes.set_ylim(0, 1.1 * max(values) or 1)
    if panel == "speed":
        axes.yaxis.set_major_formatter(count)


def figure(logs, panels=tuple(PANELS), smoothing=None, whole=False):
    """The picture of runs, a matplotlib figure; without the library, ends the program."""
    plt = pyplot()
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    width, height = (4.6 * columns, 3.4 * rows + 0.5) if columns > 1 else (8, 4.5)
    drawn, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
    colors = [f"C{i}" for i in range(10)] if len(logs) <= 10 else [plt.colormaps["turbo"](i / (len(logs) - 1)) for i in range(len(logs))]
    highest = None if whole else highest_shown(logs, smoothing)
    cells = [cell for row in axes for cell in row]
    for cell, panel in zip(cells, panels):
        draw_panel(cell, logs, colors, panel, smoothing, highest)
    for cell in cells[len(panels):]:
        cell.axis("off")
    runs = [plt.Line2D([], [], color=color, label=legend_name(log)) for log, color in zip(logs, colors)]
    ways = [plt.Line2D([], [], color="gray", label="training" + averaged(logs, smoothing)),
            plt.Line2D([], [], color="gray", marker="o", linestyle="--", markersize=3.5, label="validation")]
    n_beside = int(11 * width / (7 + max(len(line.get_label()) for line in runs + ways)))
    drawn.legend(handles=runs + ways, loc="outside upper center", ncols=max(1, min(len(logs) + 2, n_beside)), fontsize=9, frameon=False)
    return drawn


def legend_name(log):
    """A run's name as the legend shows it; of a long one the end. matplotlib reads a formula between two plain dollars."""
    name = printable(log.name)
    return (name if len(name) <= LONGEST_NAME else "..." + name[3 - LONGEST_NAME:]).replace("$", r"\$")


def panel_names(text):
    names = text.split(",")
    wrong = [name for name in names if name not in PANELS]
    if wrong or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"expected names of {','.join(PANELS)}, each once, found {text!r}")
    return names


def main():
    parser = Parser(description="Draws one or several runs from their logs in one picture.")
    parser.add_argument("logs", nargs="+", metavar="[NAME=]RUN", help="a run's folder, or a log.jsonl")
    parser.add_argument("--out", default="plot.png", help=f"picture to write, default %(default)s; its kind goes by its end: {', '.join(ENDS)}")
    parser.add_argument("--smooth", type=integer(1, 10**9), metavar="N",
                        help="average loss, norm and tokens/s over N steps; default: a hundredth of the run")
    parser.add_argument("--panels", type=panel_names, default=list(PANELS), metavar="NAME,...", help=f"of {', '.join(PANELS)}")
    parser.add_argument("--whole", action="store_true", help="losses from the first step on, however high they are")
    args = parser.parse_intermixed_args()
    if os.path.splitext(args.out)[1].lower() not in ENDS:
        fail(f"--out {args.out}: expected a path that ends with one of {', '.join(ENDS)}")
    check_output(args.out)
    save_picture(figure(read_logs(args.logs), args.panels, args.smooth, args.whole), args.out)


if __name__ == "__main__":
    end_with(main)
