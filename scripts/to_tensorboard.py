#!/usr/bin/env python3
"""Writes the logs of runs as TensorBoard event files.

usage: to_tensorboard.py [--out runs] [--follow] [NAME=]RUN ...;  then: tensorboard --logdir runs

RUN is a run's folder (--out) or a log.jsonl. Each run gets the folder OUT/NAME with one file, which replaces that of an earlier call.
--follow goes on with what runs write, every second, until ctrl-C; a run that is resumed from an earlier step goes back to it.
An event's time is the time of the run's start, or of its last resumption, and the steps' times since. Needs the package tensorboard.
"""
import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ctrl-C ends the imports without a traceback; from end_with() on in order

import calendar
import contextlib
import errno
import io
import os
import socket
import time

from comparison import EXIT_INPUT, EXIT_RUN, Parser, beside, end_with, fail, printable
from run_log import Log, command_of, log_path, named, other_log

SUFFIX = ".from_log"  # of our files, which alone we replace
GIB = 1 << 30
# (rows, field, tag, scale)
SCALARS = [("loss", "loss", "loss/train", 1), ("loss", "lr", "training/learning_rate", 1), ("loss", "norm", "training/gradient_norm", 1),
           ("loss", "skipped", "training/skipped_updates", 1), ("loss", "tok_s", "speed/tokens_per_second", 1),
           ("loss", "ms", "speed/ms_per_step", 1), ("loss", "mfu", "speed/mfu", 1), ("loss", "memory", "memory/gib", 1 / GIB),
           ("val_loss", "val_loss", "loss/validation", 1), ("acc_norm", "acc_norm", "hellaswag/acc_norm", 1),
           ("acc_norm", "acc", "hellaswag/acc", 1), ("checkpoint", "seconds", "speed/seconds_per_save", 1)]


def library():
    """(RecordWriter, Event, SessionLog, Summary, SummaryMetadata, TensorProto)"""
    try:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        fail(f"the package tensorboard cannot be imported ({error}); hint: pip install tensorboard", EXIT_RUN)
    return RecordWriter, Event, SessionLog, Summary, SummaryMetadata, TensorProto


def seconds_of(date):
    """'2026-01-31T12:00:00Z' in seconds since 1970; None where it is none."""
    try:
        return calendar.timegm(time.strptime(date, "%Y-%m-%dT%H:%M:%SZ"))
    except (TypeError, ValueError):
        return None


def table(header):
    """The header of a run as a table in Markdown."""
    rows = {**{name: value for name, value in header.items() if name not in ("flags", "argv")},
            "command": command_of(header), **{f"--{k}": v for k, v in (header.get("flags") or {}).items()}}
    cell = "| {} | `{}` |".format
    return "\n".join(["| | |", "|---|---|"] + [cell(name, str(value).replace("|", "/").replace("`", "'")) for name, value in rows.items()])


class Events:
    """The event file of a run, written here and not by a thread of the library's, whose errors nobody would hear. It takes its name, and
    that of an earlier call goes, when the log as it stands is in it; later events are appended, each of them whole."""

    def __init__(self, folder):
        records, *self.types = library()
        try:
            folder.encode()
        except UnicodeEncodeError:
            fail(f"{folder}: expected a path in UTF-8, the package tensorboard takes no other; hint: NAME=RUN, --out DIR")
        self.folder, self.made = folder, []
        self.path = os.path.join(folder, f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}{SUFFIX}")
        self.file, self.is_named, self.size = None, False, 0
        self.pending = io.BytesIO()
        self.records = records(self.pending)
        self.begun, self.begun_at = time.time(), 0.0  # when, and at what time of training
        self.records.write(self.types[0](wall_time=self.begun, file_version="brain.Event:2").SerializeToString())

    @contextlib.contextmanager
    def _writing(self):
        try:
            yield
        except OSError as error:
            self.close()
            of_machine = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
            fail(f"{self.folder}: cannot be written: {error.strerror or error}", EXIT_RUN if of_machine else EXIT_INPUT)

    def _begin(self):
        above = self.folder
        while above and not os.path.exists(above):
            self.made.append(above)
            above = os.path.dirname(above)
        os.makedirs(self.folder, exist_ok=True)
        self.file = beside(os.path.join(self.folder, "from_log"), binary=True)  # TensorBoard reads what has tfevents in its name

    def _write(self):
        """What came since."""
        with self._writing():
            if not self.file:
                self._begin()
            self.file.write(self.pending.getbuffer())
            self.file.flush()
        self.size += self.pending.tell()
        self.pending.seek(0)
        self.pending.truncate()

    def flush(self):
        """All that came is in the file of that name."""
        self._write()
        if self.is_named:
            return
        with self._writing():
            others = [name for name in os.listdir(self.folder) if name.startswith("events.out.tfevents.") and name.endswith(SUFFIX)]
            os.replace(self.file.name, self.path)
            self.is_named = True
            for name in others:
                if name != os.path.basename(self.path):
                    os.unlink(os.path.join(self.folder, name))

    def close(self):
        """Of what was half written nothing stays."""
        with contextlib.suppress(OSError):
            if self.file and not self.is_named:
                os.remove(self.file.name)
            for folder in self.made if not self.is_named else []:
                os.rmdir(folder)
        with contextlib.suppress(OSError):
            if self.file:
                self.file.close()
        with contextlib.suppress(OSError):
            if self.is_named and os.path.getsize(self.path) > self.size:
                os.truncate(self.path, self.size)

    def add(self, log, step, **content):
        passed = log.seconds_at(step) - self.begun_at
        self.records.write(self.types[0](wall_time=self.begun + passed, step=step, **content).SerializeToString())
        if self.pending.tell() > 1 << 20:
            self._write()

    def add_text(self, log, step, tag, text):
        _, _, Summary, SummaryMetadata, TensorProto = self.types
        plugin = SummaryMetadata.PluginData(plugin_name="text")
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
        self.add(log, step, summary=Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)]))

    def add_header(self, log, header):
        """The run's, or that of its resumption, from which step on what stood there before is void."""
        _, SessionLog, *_ = self.types
        step = header.get("first_step") or 0
        self.begun_at = log.seconds_at(step)
        self.begun = seconds_of(header.get("date")) or self.begun
        if len(log.headers) > 1:
            self.add(log, step + 1, session_log=SessionLog(status=SessionLog.START))
        self.add_text(log, step, "run", table(header))

    def take(self, log, kind, row):
        """A line of the log, which has it already."""
        Summary = self.types[2]
        if kind == "run":
            self.add_header(log, row)
            return
        values = [Summary.Value(tag=tag, simple_value=row[field] * scale) for rows, field, tag, scale in SCALARS
                  if rows == kind and row.get(field) is not None]
        if values:
            self.add(log, row["step"], summary=Summary(value=values))
        if kind == "sample" and row["sample"] is not None:
            self.add_text(log, row["step"], "sample", "".join(f"    {line}\n" for line in row["sample"].split("\n")))  # as code


class Source:
    """A log that may grow, be cut back by a resumption, or become that of another run."""

    def __init__(self, name, path, folder=None):
        """Without a folder it is read, and nothing is written."""
        self.log = Log(log_path(path), name)
        self.first_line, self.headers_before = None, 0
        self.open()
        self.events = Events(os.path.join(folder, *name.split(os.sep))) if folder else None

    def open(self):
        try:
            self.file = open(self.log.path, "rb")
        except OSError as error:
            fail(f"{self.log.path}: {error.strerror}{other_log(self.log.path)}")
        self.at, self.n_lines, self.n_headers = 0, 0, 0

    def is_replaced(self):
        try:
            return not os.path.samestat(os.stat(self.log.path), os.fstat(self.file.fileno()))
        except FileNotFoundError:
            return False  # it is about to be

    def read(self):
        """Takes the whole lines that have come."""
        self.file.seek(self.at)  # half a line may have been cut off since
        for line in self.file:
            if not line.endswith(b"\n"):
                break
            self.at += len(line)
            self.n_lines += 1
            self.take(line.decode(errors="replace"))
        if self.events:
            self.events.flush()

    def follow(self):
        """The same; of a resumed run from its newest header on, because the lines before it are old."""
        self.read()
        if not self.is_replaced():
            return
        self.read()  # what came between
        self.file.close()
        self.headers_before = len(self.log.headers)
        self.open()
        self.read()

    def take(self, line):
        if self.n_lines == 1 and self.first_line not in (None, line):
            fail(f"{self.log.path}: is the log of another run now; hint: the same command again follows that one", EXIT_RUN)
        self.first_line = self.first_line or line
        is_header = line.startswith('{"run"')
        self.n_headers += is_header
        if self.headers_before and self.n_headers <= self.headers_before:
            return
        taken = self.log.take(line, self.n_lines)
        if taken and self.events:
            self.events.take(self.log, *taken)


def follow(sources):
    """Until ctrl-C or SIGTERM."""

    def stop(*_):
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        while True:
            for source in sources:
                source.follow()
            time.sleep(1)
    except KeyboardInterrupt:
        pass


def main():
    parser = Parser(description="Writes the logs of runs as TensorBoard event files, a folder a run.")
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN", help="a run's folder, or a log.jsonl")
    parser.add_argument("--out", default="runs", metavar="DIR", help="the folder of folders, default %(default)s; tensorboard --logdir DIR")
    parser.add_argument("--follow", action="store_true", help="go on with what runs write, until ctrl-C")
    args = parser.parse_intermixed_args()
    library()
    for name, path in named(args.runs):
        source = Source(name, path)
        source.read()  # a damaged log is refused before anything is written
        if not args.follow:
            source.log.must_have_steps()
    sources = [Source(name, path, args.out) for name, path in named(args.runs)]
    try:
        for source in sources:
            source.read()
        names = ", ".join(source.log.name for source in sources)
        print(printable(f"{args.out}: {names}; to look at it: tensorboard --logdir {args.out}"), flush=True)
        if args.follow:
            follow(sources)
    finally:
        for source in sources:
            source.events.close()


if __name__ == "__main__":
    end_with(main)
