#!/usr/bin/env python3
"""Draws loss curves from log.jsonl files.

usage: plot_loss.py [--out loss.png] [--smooth N] NAME=DIR/log.jsonl ...

One training curve (thin) and one validation curve (dots) for each run; NAME= may be left out. Needs matplotlib.
A resumed run is one curve: the log holds every step once. Exit 2 on a file that is no log, naming the line.
"""
import argparse
import json
import sys


def read_log(path):
    """Returns ([(step, loss)], [(step, val_loss)]) of one log.jsonl; a null loss (NaN) is left out."""
    train, val = [], []
    try:
        lines = open(path, encoding="utf-8").read().splitlines()
    except OSError as error:
        sys.exit(f"error: {path}: {error.strerror}")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            print(f"error: {path}:{number}: not JSON: {error.msg}", file=sys.stderr)
            sys.exit(2)
        if row.get("loss") is not None:
            train.append((row["step"], row["loss"]))
        if row.get("val_loss") is not None:
            val.append((row["step"], row["val_loss"]))
    return train, val


def smooth(points, n):
    """Mean over the last n points at each point."""
    result, total = [], 0.0
    for i, (step, loss) in enumerate(points):
        total += loss - (points[i - n][1] if i >= n else 0.0)
        result.append((step, total / min(i + 1, n)))
    return result


def main():
    parser = argparse.ArgumentParser(description="loss curves from log.jsonl files")
    parser.add_argument("logs", nargs="+", metavar="[NAME=]LOG")
    parser.add_argument("--out", default="loss.png", help="picture to write (png, svg or pdf by its ending)")
    parser.add_argument("--smooth", type=int, default=1, metavar="N", help="average the training loss over N steps")
    args = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        sys.exit("error: matplotlib is not installed; hint: pip install matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for index, spec in enumerate(args.logs):
        name, _, path = spec.rpartition("=")
        train, val = read_log(path)
        color = f"C{index}"
        if train:
            axes.plot(*zip(*smooth(train, max(args.smooth, 1))), color=color, linewidth=1, alpha=0.8,
                      label=f"{name or path}: train")
        if val:
            axes.plot(*zip(*val), "o-", color=color, markersize=4, linewidth=1.5, label=f"{name or path}: validation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(args.out, dpi=120)
    print(args.out)


if __name__ == "__main__":
    main()
