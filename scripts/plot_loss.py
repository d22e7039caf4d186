#!/usr/bin/env python3
"""Draws loss curves from log.jsonl files.

usage: plot_loss.py [--out loss.png] [--smooth N] NAME=DIR/log.jsonl ...

One training curve (thin) and one validation curve (dots) for each run; NAME= may be left out. Needs matplotlib.
A resumed run is one curve: the log holds every step once. Exit 2 on a file that is no log, naming the line.
"""
import json

from comparison import EXIT_RUN, Parser, fail, integer


def read_log(path):
    """Returns ([(step, loss)], [(step, val_loss)]) of one log.jsonl; a null loss (NaN) is left out."""
    train, val = [], []
    try:
        with open(path, encoding="utf-8") as file:
            lines = list(file)  # by newlines alone: a sample's text may hold other separators
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path}: {getattr(error, 'strerror', None) or 'expected a log.jsonl, found no text'}")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            for points, name in ((train, "loss"), (val, "val_loss")):
                if row.get(name) is not None:
                    points.append((int(row["step"]), float(row[name])))
        except (ValueError, AttributeError, KeyError, TypeError):
            fail(f"{path}:{number}: expected a line of a log.jsonl, found {line[:40].strip()!r}")
    if not train and not val:
        fail(f"{path}: no step in it")
    return train, val


def smooth(points, n):
    """Mean over the last n points at each point."""
    result, total = [], 0.0
    for i, (step, loss) in enumerate(points):
        total += loss - (points[i - n][1] if i >= n else 0.0)
        result.append((step, total / min(i + 1, n)))
    return result


def main():
    parser = Parser(description="loss curves from log.jsonl files")
    parser.add_argument("logs", nargs="+", metavar="[NAME=]LOG")
    parser.add_argument("--out", default="loss.png", help="picture to write (png, svg or pdf by its ending)")
    parser.add_argument("--smooth", type=integer(1, 10**9), default=1, metavar="N", help="average the training loss over N steps")
    args = parser.parse_args()
    specs = [spec.rpartition("=") for spec in args.logs]
    logs = [(name or path, *read_log(path)) for name, _, path in specs]
    try:
        import matplotlib
    except ImportError:
        fail("matplotlib is not installed; hint: pip install matplotlib", EXIT_RUN)
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for index, (name, train, val) in enumerate(logs):
        color = f"C{index}"
        if train:
            axes.plot(*zip(*smooth(train, args.smooth)), color=color, linewidth=1, alpha=0.8,
                      label=f"{name}: train")
        if val:
            axes.plot(*zip(*val), "o-", color=color, markersize=4, linewidth=1.5, label=f"{name}: validation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    try:
        figure.savefig(args.out, dpi=120)
    except (OSError, ValueError) as error:
        fail(f"--out {args.out}: cannot be written: {error}")
    print(args.out)


if __name__ == "__main__":
    main()
