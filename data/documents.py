"""The texts of files, however large: plain text, JSON Lines (.jsonl, .ndjson, either as .gz) and parquet; and how far one has come."""
import errno
import glob
import gzip
import io
import json
import os
import re
import stat
import sys
import time
import zlib

import common

CHUNK = 1 << 20  # characters of a plain text at a time
PACKED_LINES = (".jsonl.gz", ".ndjson.gz")
LINES, COLUMNS = (".jsonl", ".ndjson", *PACKED_LINES), ".parquet"
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)  # what a .gz raises
HALVES = re.compile("[\ud800-\udfff]")  # JSON can escape one alone


def is_named(path, endings):
    """The name says what is in it, in letters of either case."""
    return path.lower().endswith(endings)


# ---- plain text ----

def _cut(text, first):
    """Where text can be cut so that both sides encode as the whole does: before the last space or newline that follows no
    white space, where GPT-2's pattern begins a piece whatever comes next. 0: nowhere from `first` on."""
    for i in range(len(text) - 1, max(first, 1) - 1, -1):
        if text[i] in " \n" and not text[i - 1].isspace():
            return i
    return 0


def _chunks(raw, path, errors):
    """Yields the text of a file in pieces of about CHUNK characters."""
    rest = ""
    try:
        file = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, newline="")
        for block in iter(lambda: file.read(CHUNK), ""):
            rest += block
            cut = _cut(rest, len(rest) - len(block)) if len(block) == CHUNK else 0  # a short block is the last
            if cut:
                yield rest[:cut]
                rest = rest[cut:]
    except UnicodeDecodeError as error:
        raise common.DataError("%s: not UTF-8: %s; hint: --replace-invalid" % (path, error.reason), 2) from None
    yield rest


# ---- one document a line, or a row ----

def _lines(raw, path, field, errors):
    """Yields the text of each line of a JSONL file."""
    opened = gzip.GzipFile(fileobj=raw) if is_named(path, ".gz") else raw
    number = 0
    try:
        for number, line in enumerate(io.TextIOWrapper(opened, encoding="utf-8", errors=errors, newline="\n"), 1):
            if line.strip():
                yield _text_of(json.loads(line), field, "%s:%d" % (path, number), errors)
    except UnicodeDecodeError as error:
        raise common.DataError("%s: not UTF-8 after line %d: %s; hint: --replace-invalid" % (path, number, error.reason), 2) from None
    except (ValueError, RecursionError, *DAMAGED) as error:
        raise common.DataError("%s:%d: not a line of JSON: %s" % (path, max(number, 1), error), 2) from None


def _text_of(value, field, place, errors):
    if not isinstance(value, dict) or not isinstance(value.get(field), str):
        found = type(value).__name__ if not isinstance(value, dict) else ", ".join(sorted(value)) or "none"
        if isinstance(value, dict) and field in value:
            found = "%s there" % type(value[field]).__name__
        raise common.DataError("%s: expected an object with a text in `%s`, found %s; hint: --field" % (place, field, found), 2)
    half = HALVES.search(value[field])
    if half and errors == "strict":
        raise common.DataError("%s: `%s` has \\u%04x, half a surrogate pair, which is no character; hint: --replace-invalid"
                               % (place, field, ord(half.group())), 2)
    return HALVES.sub("\ufffd", value[field]) if half else value[field]


def rows(path, field="text"):
    """Yields (text, share of the file that is read) of a parquet file's column, row by row; of a null an empty text."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            if field not in file.schema_arrow.names:
                raise common.DataError("%s: no column `%s` among %s; hint: --field" % (path, field, ", ".join(file.schema_arrow.names)), 2)
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                for number, text in enumerate(batch.column(0), number + 1):
                    text = text.as_py()
                    if text is not None and not isinstance(text, str):
                        raise common.DataError("%s: row %d: expected a text in `%s`, found %s; hint: --field"
                                               % (path, number, field, type(text).__name__), 2)
                    yield text or "", number / file.metadata.num_rows
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise common.DataError("%s: %s" % (path, error), 2) from None
    except OSError as error:
        if error.errno is not None:  # the system's; pyarrow's own, of damaged data, have no number
            raise
        raise common.DataError("%s: row %d: %s" % (path, number + 1, error), 2) from None


# ---- files ----

def texts(path, field="text", errors="strict"):
    """Yields (text, whether it begins a document, bytes of the file that are read)."""
    if is_named(path, COLUMNS):
        size = os.path.getsize(path)
        for text, share in rows(path, field):
            yield text, True, int(share * size)
        return
    with open(path, "rb") as raw:
        if is_named(path, LINES):
            for text in _lines(raw, path, field, errors):
                yield text, True, raw.tell()
        else:
            for number, text in enumerate(_chunks(raw, path, errors)):
                yield text, number == 0, raw.tell()


def is_text(path):
    try:
        common.check_text(path)
    except common.DataError:
        return False
    return True


def _is_file(path):
    """False of a link to nowhere, too; raises where it cannot be known, as in a folder that may be listed and not entered."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return False
        raise


def _raise(error):
    raise error


def _in_folder(folder, endings):
    if not endings:
        raise common.DataError("%s: Is a directory; hint: --endings .txt,.md takes its files" % folder, 2)
    below_it = os.walk(folder, onerror=_raise)  # which else passes over a folder that cannot be read
    found = sorted(os.path.join(where, file) for where, _, below in below_it for file in below if file.endswith(endings))
    return [path for path in found if _is_file(path) and (is_named(path, (*LINES, COLUMNS)) or is_text(path))]


def _check_folders(pattern):
    """Raises where a folder in which a glob's names are looked for cannot be read: glob passes over it."""
    parts = pattern.split(os.sep)
    for i, part in enumerate(parts):
        before = "".join(name + os.sep for name in parts[:i])
        if not glob.has_magic(before + part):
            continue
        folders = glob.glob(before, recursive=True) if before else [""]
        if part == "**":
            folders += glob.glob(before + part + os.sep, recursive=True)
        for folder in folders:
            if glob.has_magic(part):
                os.scandir(folder.rstrip(os.sep) or folder or os.curdir).close()
            elif part:
                _is_file(folder + part)


def glob_sorted(pattern):
    """What a glob stands for, folders too. Raises where a folder on the way cannot be read."""
    _check_folders(pattern)
    return sorted(glob.glob(pattern, recursive=True))


def _matches(name):
    """The files of a glob, sorted; of a name that is there, or is no glob, itself."""
    if os.path.exists(name) or not glob.has_magic(name):
        return [name]
    found = [path for path in glob_sorted(name) if not os.path.isdir(path)]
    if not found:
        raise common.DataError("%s: no such file, and as a pattern it matches none" % name, 2)
    return found


def expand(names, endings):
    """The files that are named or match, checked, and those below the folders that are named."""
    files = []
    for name in names:
        for path in _matches(name):
            if os.path.isdir(path):
                files += _in_folder(path, endings)
                continue
            if os.path.exists(path) and not os.path.isfile(path):
                raise common.DataError("%s: expected a file, found a pipe or a device; hint: write it into a file first" % path, 2)
            if is_named(path, (*PACKED_LINES, COLUMNS)):  # a missing one is found before the others are read
                open(path, "rb").close()
            else:
                common.check_text(path)
            files.append(path)
    return files


def add_reading(parser):
    parser.add_argument("files", nargs="+", metavar="FILE", help="files, folders, or globs in quotes")
    parser.add_argument("--endings", default=None, metavar="LIST", help="of the files to take from a folder, such as .txt,.md; a folder needs it")
    parser.add_argument("--field", default="text", help="where a line of .jsonl or a row of .parquet has its text, default %(default)s")
    parser.add_argument("--replace-invalid", action="store_true", help="bytes that are not UTF-8 become U+FFFD")


def files_of(args):
    return expand(args.files, tuple(args.endings.split(",")) if args.endings else ())


def errors_of(args):
    return "replace" if args.replace_invalid else "strict"


# ---- how far ----

class Progress:
    """One line on a terminal, drawn again as files are read; nothing where stderr is none."""

    def __init__(self, files, out=None, now=time.monotonic):
        self.out = out or sys.stderr
        self.shown = self.out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.total = sum(map(os.path.getsize, files)) if self.shown else 0
        self.now, self.begun, self.drawn, self.before = now, now(), 0.0, 0

    def draw(self, text):
        width = (os.get_terminal_size(self.out.fileno()).columns or 80) - 1
        self.out.write("\r" + text[:width].ljust(width))
        self.out.flush()

    def at(self, position):
        """Bytes of the file at hand that are read."""
        now = self.now()
        if not self.shown or now - self.drawn < 0.2:
            return
        self.drawn, seconds = now, max(now - self.begun, 1e-3)
        done = min(self.before + position, self.total)
        left = seconds * (self.total - done) / max(done, 1)
        known = ", %d:%02d:%02d left" % (left // 3600, left // 60 % 60, left % 60) if seconds >= 2 else ""
        self.draw("%3d %%  %s of %s, %s/s%s" % (100 * done // max(self.total, 1), size(done), size(self.total), size(done / seconds), known))

    def say(self, text):
        if self.shown:
            self.draw(text)

    def file_done(self, path):
        if self.shown:
            self.before += os.path.getsize(path)

    def end(self):
        if self.shown:
            self.draw("")
            self.out.write("\r")
            self.out.flush()


def size(n):
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return ("%.0f %s" if unit == "B" else "%.1f %s") % (n, unit)
        n /= 1000


def all_texts(files, field, errors, progress):
    """Yields (text, whether it begins a document) of all files, one after the other."""
    for path in files:
        for text, begins, position in texts(path, field, errors):
            progress.at(position)
            yield text, begins
        progress.file_done(path)
