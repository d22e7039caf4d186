"""What becomes of a table's rows: a CSV file, and from that file alone a Markdown page and a plot."""
import csv
import itertools
import os
import re
import sys
from dataclasses import dataclass

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "scripts"))
from comparison import split_csv  # noqa: E402  scripts/comparison.py


@dataclass
class Section:
    """A part of a table: some of its rows, and values of them over x; the plot shows the first value."""

    title: str
    values: dict  # heading: a column of the CSV, or a function of a row that gives a number or None
    where: object = lambda row: True
    x: str = "Tk"
    x_label: str = "T"
    plotted: bool = True
    roofs: bool = False  # draws the card's roofs: TFLOP/s
    log: bool = True


@dataclass
class Table:
    number: int
    name: str
    title: str
    published: str  # figures of the literature, on other cards
    sources: list  # functions of a Run that give rows and comment lines
    sections: list
    derive: object = lambda rows: []  # rows that follow from the others


# ---- the CSV ----


def write_csv(path, rows, comments):
    fields = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write("".join(f"{line}\n" for line in comments))
        writer = csv.DictWriter(file, fields, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


class DamagedCsv(Exception):
    """A file that write_csv cannot have written: what, in one line."""


def read_csv(path):
    """Rows, all cells text, and comment lines; DamagedCsv where the header, a commit or a number is not there."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader, comments = split_csv(file.read())
    except UnicodeDecodeError as error:
        raise DamagedCsv(f"{path}: not text: {error.reason} at byte {error.start}") from None
    rows = list(reader)
    if not rows or "variant" not in rows[0]:
        raise DamagedCsv(f"{path}: expected rows with a column 'variant', found {len(rows)} rows of {list(rows[0])[:3] if rows else []}")
    if any(None in row or None in row.values() for row in rows):
        raise DamagedCsv(f"{path}: a row has more or fewer cells than the header")
    if not any(line.startswith("# commit ") for line in comments):
        raise DamagedCsv(f"{path}: no line names the commit")
    return rows, comments


# ---- rows ----


def label(row):
    """Variant, with the masks that set rows of one variant apart."""
    forms = [form for form in ("sparse", "dropout") if row.get(form) == "1"]
    window = [f"window {row['window']}"] if row.get("window", "0") not in ("", "0") else []
    return " ".join([row["variant"], *forms, *window])


def number(row, value):
    """The value of a row, or None."""
    if callable(value):
        return value(row)
    return float(row[value]) if row.get(value) else None


def pivot(section, rows, value):
    """The x of the section, and for each label its values by x."""
    chosen = [row for row in rows if section.where(row)]
    xs, series = sorted({int(row[section.x]) for row in chosen}), {}
    for row in chosen:
        series.setdefault(label(row), {})[int(row[section.x])] = number(row, value)
    return xs, {name: values for name, values in series.items() if any(v is not None for v in values.values())}


def has_values(section, rows):
    return bool(pivot(section, rows, next(iter(section.values.values())))[1])


def cell(value):
    return "" if value is None else f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


# ---- Markdown ----


def rows_of_markdown(head, lines):
    return ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(line) + " |" for line in lines), ""]


def section_markdown(section, rows):
    """One table where there is one x, else one for each value."""
    tables = {heading: pivot(section, rows, value) for heading, value in section.values.items()}
    xs = next(iter(tables.values()))[0]
    lines = [f"## {section.title}", ""]
    if len(xs) == 1:
        names = list(dict.fromkeys(name for _, series in tables.values() for name in series))
        head = [f"{section.x_label} = {xs[0]}", *tables]
        return lines + rows_of_markdown(head, [[name, *(cell(s.get(name, {}).get(xs[0])) for _, s in tables.values())] for name in names])
    for heading, (_, series) in tables.items():
        head = [f"{heading} at {section.x_label} =", *map(str, xs)]
        lines += rows_of_markdown(head, [[name, *(cell(values.get(x)) for x in xs)] for name, values in series.items()])
    return lines


def left_out(comments):
    """Of rows that were skipped: the first of each variant and reason."""
    first = {}
    for line in comments:
        if line.startswith("# skip "):
            op, variant, rest = line[7:].split(None, 2)
            reason = re.search(r"(a call|scratch|it does not|needs|its).*", rest)
            first.setdefault((op, variant, re.sub(r"[0-9.e+]+", "", reason[0]) if reason else rest), line[7:])
    return list(first.values())


def markdown(table, rows, comments):
    lines = [f"# {table.number}. {table.title}", "", *(f"    {line}" for line in comments if not line.startswith("# skip ")), "",
             f"Published: {table.published}.", ""]
    for section in table.sections:
        if has_values(section, rows):
            lines += section_markdown(section, rows)
    skipped = left_out(comments)
    if skipped:
        lines += ["Left out (the first size of each):", "", *(f"    {text}" for text in skipped), ""]
    return "\n".join(lines)


# ---- the plot ----

STYLES = [{"color": color, "marker": marker, "linestyle": line} for marker, line in (("o", "-"), ("s", "--"), ("^", ":")) for color in ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9")]


def roofs_of(comments):
    """{"cuda bf16": TFLOP/s} of the lab's comment lines."""
    return {match[1]: float(match[2]) for line in comments if (match := re.match(r"# .*, (c[a-z0-9 ]+): copy .* ([0-9.]+) TFLOP/s", line))}


def plain(value, _):
    """A number at an axis."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def styles_of(table, rows):
    """{label: style}: a variant looks the same in all parts of a table."""
    names = [name for section in table.sections if section.plotted for name in pivot(section, rows, next(iter(section.values.values())))[1]]
    return dict(zip(dict.fromkeys(names), itertools.cycle(STYLES)))


def draw_lines(axes, section, rows, comments, styles):
    from matplotlib.ticker import LogLocator

    heading, value = next(iter(section.values.items()))
    xs, series = pivot(section, rows, value)
    for name, values in series.items():
        points = [(x, values[x]) for x in xs if values.get(x) is not None and (values[x] > 0 or not section.log)]
        if points:
            axes.plot(*zip(*points), markersize=4, linewidth=1.2, label=name, **styles[name])
    for name, roof in roofs_of(comments).items() if section.roofs else ():
        axes.axhline(roof, linestyle="--", linewidth=1, color="black", alpha=0.6)
        axes.annotate(f"roof, {name}: {roof:.4g}", (xs[-1], roof), xytext=(0, 3), textcoords="offset points", ha="right", fontsize=7)
    axes.set_xscale("log", base=2)
    if section.log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
        axes.yaxis.set_major_formatter(plain)
    axes.set_xticks(xs, [f"{x // 1024}k" if x % 1024 == 0 else str(x) for x in xs], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(section.x_label)
    axes.set_ylabel(heading)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=7, ncol=3, loc="upper center", bbox_to_anchor=(0.5, -0.17))


def draw_bars(axes, section, rows):
    """Where there is one x: a bar for each label."""
    heading, value = next(iter(section.values.items()))
    xs, series = pivot(section, rows, value)
    names = sorted((name for name, values in series.items() if values.get(xs[0]) is not None), key=lambda name: series[name][xs[0]])
    bars = axes.barh(names, [series[name][xs[0]] for name in names], color="C0")
    axes.bar_label(bars, [cell(series[name][xs[0]]) for name in names], padding=3, fontsize=8)
    if section.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(plain)
        axes.xaxis.set_minor_formatter("")
    axes.set_xlabel(heading)
    axes.margins(x=0.15)


def draw(table, rows, comments, path):
    """Without matplotlib there is no plot, and a line that says so."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print(f"skip {path}: matplotlib is not installed; hint: pip install matplotlib, then dev/tables.py --redraw")
        return
    sections = [section for section in table.sections if section.plotted and has_values(section, rows)]
    styles = styles_of(table, rows)
    columns = 1 if len(sections) == 1 else 2
    lines = -(-len(sections) // columns)
    figure, grid = pyplot.subplots(lines, columns, figsize=(6.5 * columns, 4.6 * lines + 0.4), squeeze=False, layout="constrained")
    for axes, section in zip(grid.flat, sections):
        axes.set_title(section.title, fontsize=9)
        if len(pivot(section, rows, next(iter(section.values.values())))[0]) > 1:
            draw_lines(axes, section, rows, comments, styles)
        else:
            draw_bars(axes, section, rows)
    for axes in list(grid.flat)[len(sections):]:
        axes.axis("off")
    figure.suptitle(f"{table.number}. {table.title}\n{where_from(comments)}, dev/tables.py {table.name}", fontsize=10)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def where_from(comments):
    """Card (or CPU), commit and date in one line."""
    found = {}
    for line in comments:
        for kind in ("gpu", "cpu", "commit", "date"):
            if line.startswith(f"# {kind} "):
                found.setdefault(kind, line[len(kind) + 3:])
    card = found.get("gpu", found.get("cpu", "")).split(",")[0]
    return ", ".join([card, f"commit {found.get('commit', '?')}", found.get("date", "")])


def card_name(comments):
    """The name of the card's folder, or of the CPU's."""
    return re.sub(r"[^a-z0-9]+", "-", where_from(comments).split(",")[0].lower()).strip("-") or "unknown"


def write_page(table, folder):
    """Markdown and plot from the CSV."""
    base = os.path.join(folder, table.name)
    rows, comments = read_csv(base + ".csv")
    try:
        if not any(has_values(section, rows) for section in table.sections if section.plotted):
            raise DamagedCsv(f"{base}.csv: none of its {len(rows)} rows belongs to table {table.number}")
        text = markdown(table, rows, comments)
    except (KeyError, ValueError) as error:
        raise DamagedCsv(f"{base}.csv: {type(error).__name__}: {error}") from None
    with open(base + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    draw(table, rows, comments, base + ".png")
    return len(rows)
