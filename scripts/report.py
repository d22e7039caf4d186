#!/usr/bin/env python3
"""Writes one page of a run: settings, data, curves, losses, speed, memory, saves, samples, warnings.

usage: report.py [--out report.html] [NAME=]RUN

RUN is a run's folder (--out) or a log.jsonl. The page is one HTML file with its pictures inside: it opens everywhere, and can be
sent and kept as it is. Needs matplotlib. Exit 2 on a file that is no log, naming the line.
"""
import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ctrl-C ends the imports without a traceback; from end_with() on in order

import base64
import html
import io
import math
import os

from comparison import Output, Parser, end_with, fail, printable
from plot import count, figure
from run_log import command_of, read_logs

STYLE = """body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; background: #fff }
h1 { margin-bottom: 0 } h2 { margin: 1.6em 0 0.4em; font-size: 1.15em } img { max-width: 100% }
table { border-collapse: collapse } td, th { padding: 0.15em 1.2em 0.15em 0; text-align: left; vertical-align: top }
tr + tr td { border-top: 1px solid #ddd } td:first-child { color: #555; white-space: nowrap } .n { text-align: right }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f4f4f4; padding: 0.8em; unicode-bidi: isolate }
ul.warnings { background: #fff3d6; padding: 0.6em 0.6em 0.6em 2em } code { overflow-wrap: anywhere }
.columns { columns: 22em } .columns tr { break-inside: avoid }"""
ENDS = (".html", ".htm")
MOST_ROWS = 40  # of a table


def escaped(text):
    """Text as HTML. What a page could not show, or would be turned around by, becomes '?'."""
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "?" for c in str(text)))


def digits(value, form="{:.4f}"):
    return "not known" if value is None else form.format(value)


def duration(seconds):
    """'1 h 02 min', '3 min 20 s', '12.5 s'"""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


def memory(n_bytes):
    return "not in the log" if n_bytes is None else f"{n_bytes / (1 << 30):.2f} GiB" if n_bytes >= 1 << 30 else f"{n_bytes / (1 << 20):.1f} MiB"


def table(rows, heads=None, limit=MOST_ROWS):
    """rows: [(cell, ...)]; cells but the first are flush right where there are heads. Of a long table the ends."""
    if limit and len(rows) > limit:
        left_out = len(rows) - limit
        rows = rows[:limit // 2] + [(f"{left_out} more",) + ("",) * (len(rows[0]) - 1)] + rows[-limit // 2:]
    right = ' class="n"' if heads else ""
    lines = [f"<tr><th>{escaped(heads[0])}</th>" + "".join(f"<th{right}>{escaped(head)}</th>" for head in heads[1:]) + "</tr>"] if heads else []
    for first, *others in rows:
        lines.append(f"<tr><td>{escaped(first)}</td>" + "".join(f"<td{right}>{escaped(cell)}</td>" for cell in others) + "</tr>")
    return "<table>" + "\n".join(lines) + "</table>"


def best_of(points):
    """(step, value) of the lowest; None of none."""
    return min(points, key=lambda point: point[1]) if points else None


def last_step(log):
    return max([row["step"] for row in log.steps + log.vals], default=0)


def validated_since(log):
    """The step behind which all validations are of the same data; others do not compare."""
    since, of = 0, [(header.get("val"), log.flag("val", i)) for i, header in enumerate(log.headers)]
    for i in range(1, len(of)):
        if of[i] != of[i - 1]:
            since = log.headers[i].get("first_step") or 0
    return since


def comparable(log):
    since = validated_since(log)
    return [point for point in log.points("vals", "val_loss") if point[0] > since]


def figures(log):
    """[(name, text)] of what the run came to."""
    vals, step = comparable(log), last_step(log)
    best = best_of(vals)
    steps = log.flag("steps")
    speed, mfu = log.median("tok_s"), log.median("mfu")
    used = [value for _, value in log.points("steps", "memory")]
    rows = [("steps", f"{step:,} of {steps:,}" if isinstance(steps, int) else f"{step:,}")]
    if log.knows_tokens():
        rows.append(("tokens", f"{log.tokens_at(step):,} ({count(log.tokens_at(step))})"))
    rows += [("training loss, last step", digits(log.steps[-1].get("loss") if log.steps else None)),
             ("validation loss, last", f"{vals[-1][1]:.4f} (step {vals[-1][0]:,})" if vals else "none"),
             ("validation loss, lowest", f"{best[1]:.4f} (step {best[0]:,})" if best else "none")]
    rows += [(f"HellaSwag, step {row['step']:,}", f"acc_norm {digits(row['acc_norm'])}, acc {digits(row.get('acc'))}") for row in log.scores[-1:]]
    rows += [("training time", f"{duration(log.seconds_at(math.inf))}, without validation, samples and saves"),
             ("speed, median step", f"{count(speed)} tokens/s" if speed is not None else "not known"),
             ("MFU, median step", digits(mfu and 100 * mfu, "{:.1f} %")), ("memory, highest", memory(max(used, default=None)))]
    return rows


def about(log):
    """[(name, text)] of what the run was."""
    first, header = (log.headers[0], log.headers[-1]) if log.headers else ({}, {})
    tokenizer = header.get("tokenizer") or {}
    parameters = first.get("parameters")
    rows = [("begun", first.get("date"))]
    rows += [("resumed", f"{again.get('date')}, from step {again.get('first_step')}, by {again.get('version')}") for again in log.headers[1:]]
    rows += [("program", header.get("version")), ("command", command_of(header)),
             ("model", f"{first.get('model')}, {count(parameters)} parameters" if parameters else first.get("model")),
             ("device", header.get("device")), ("ranks", header.get("ranks")), ("training data", header.get("train")),
             ("validation data", header.get("val")), ("tokenizer", tokenizer.get("name") if isinstance(tokenizer, dict) else None)]
    return [(name, text) for name, text in rows if text not in (None, "")]


def warnings(log):
    """What a reader should know, in sentences."""
    step, steps, said = last_step(log), log.flag("steps"), []
    if not log.headers:
        said.append("The log has no header: settings, data and program are not known.")
    elif isinstance(steps, int) and step < steps:
        said.append(f"The run stands at step {step:,} of {steps:,}: it goes on, was stopped, or failed.")
    skipped = log.steps[-1].get("skipped") if log.steps else 0
    if skipped:
        said.append(f"{skipped} updates were skipped: their gradients were no finite numbers.")
    said += [f"The save of step {row['step']:,} failed: {row['save_failed']}" for row in log.failed_saves]
    vals = comparable(log)
    best = best_of(vals)
    if validated_since(log):
        said.append(f"Other data validates from step {validated_since(log):,} on: losses before it do not compare.")
    if best and vals[-1][1] > 1.005 * best[1]:
        said.append(f"The validation loss rose from {best[1]:.4f} (step {best[0]:,}) to {vals[-1][1]:.4f}: --keep-best keeps the model that was best.")
    if log.steps and not log.points("vals", "val_loss"):
        said.append("Nothing was validated.")
    saved = max([row["step"] for row in log.saves], default=None)
    if saved is None or saved < step:
        said.append("No checkpoint is in the log." if saved is None else f"The newest checkpoint is that of step {saved:,}, {step - saved:,} steps before the log's end.")
    versions = list(dict.fromkeys(header.get("version") for header in log.headers))
    if any(str(version).endswith("-modified") for version in versions):
        said.append("The program was built from sources that are in no commit (-modified).")
    if len(versions) > 1:
        said.append(f"The run was resumed by another build: {', '.join(map(str, versions))}.")
    return said


def settings(log):
    """[(flag, value)]; what the command gave stands first."""
    flags = log.headers[-1].get("flags") if log.headers else None
    if not isinstance(flags, dict):
        return [], []
    words = [str(word).partition("=")[0] for word in log.headers[-1].get("argv") or []]
    rows = [(f"--{name}", "on" if value is True else "off" if value is False else value) for name, value in flags.items() if value is not None]
    return [row for row in rows if row[0] in words], [row for row in rows if row[0] not in words]


def picture(log):
    """The curves as an <img> that holds its data."""
    data = io.BytesIO()
    figure([log]).savefig(data, format="png", dpi=110)
    return f'<img alt="loss, learning rate, gradient norm, tokens/s and memory of the run" src="data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}">'


def folded(title, body):
    return f"<details><summary>{title}</summary>{body}</details>"


def samples(log):
    """The newest sample, and those before it, folded."""
    shown = [f"<h3>step {row['step']:,}</h3><pre>{escaped(row['sample'])}</pre>" for row in log.samples if row["sample"] is not None]
    before = folded(f"{len(shown) - 1} before it", "".join(shown[-2::-1])) if len(shown) > 1 else ""
    return shown[-1] + before if shown else ""


def page(log):
    """The report as HTML."""
    given, others = settings(log)
    parts = [("", table(figures(log))), ("Warnings", "".join(f"<li>{escaped(text)}</li>" for text in warnings(log))), ("Curves", picture(log)),
             ("The run", table(about(log))), ("Settings of the command", table(given) if given else ""),
             ("Other settings", folded("what the command does not name", f'<div class="columns">{table(others, limit=None)}</div>') if others else ""),
             ("Validation", table([(f"{step:,}", f"{loss:.4f}") for step, loss in log.points("vals", "val_loss")], ("step", "loss")) if log.vals else ""),
             ("Checkpoints", table([(row["checkpoint"], digits(row.get("seconds"), "{:.2f}")) for row in log.saves], ("name", "seconds to save")) if log.saves else ""),
             ("Samples", samples(log))]
    lines = ["<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
             f"<title>{escaped(log.name)}</title><style>{STYLE}</style></head><body>", f"<h1>{escaped(log.name)}</h1>"]
    for title, body in parts:
        if not body:
            continue
        if title:
            lines.append(f"<h2>{title}</h2>")
        lines.append(f'<ul class="warnings">{body}</ul>' if title == "Warnings" else body)
    return "\n".join(lines + ["</body></html>", ""])


def main():
    parser = Parser(description="Makes one page of a run, an HTML file that holds its pictures.")
    parser.add_argument("run", metavar="[NAME=]RUN", help="a run's folder, or a log.jsonl")
    parser.add_argument("--out", default="report.html", help=f"page to write, default %(default)s; it ends with {' or '.join(ENDS)}")
    args = parser.parse_args()
    if os.path.splitext(args.out)[1].lower() not in ENDS:  # a page replaces a page, never a text that stands behind a slip of the hand
        fail(f"--out {args.out}: expected a path that ends with one of {', '.join(ENDS)}")
    file = Output(args.out)
    (log,) = read_logs([args.run])
    try:
        file.write(page(log))
        file.close()
    finally:
        file.discard()
    print(printable(args.out))


if __name__ == "__main__":
    end_with(main)
