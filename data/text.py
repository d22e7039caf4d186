#!/usr/bin/env python3
"""Your own text files as token shards with GPT-2's tokenizer.

Writes OUT/NAME_train_000001.bin, ... and OUT/NAME_val_000000.bin (the last tenth), and gpt2_tokenizer.bin. Every file is one
document, in the order given, with an end-of-text token before it; of a .jsonl or .jsonl.gz every line is one, its text in --field.
A folder stands for the files below it, sorted by path, whose names have one of --endings; those that are no text are left out.
"""
import concurrent.futures
import gzip
import hashlib
import itertools
import json
import os

import common
import sharding

CHUNK = 1 << 20  # characters handed to a process at a time


def _cut(text):
    """Where text can be cut so that both sides encode as the whole does: before the last space or newline that follows a
    visible ASCII character, where GPT-2's pattern begins a piece whatever comes next. 0: nowhere."""
    for i in range(len(text) - 1, 0, -1):
        if text[i] in " \n" and "!" <= text[i - 1] <= "~":
            return i
    return 0


def chunks(path, errors):
    """Yields the text of a file in pieces of about CHUNK characters."""
    rest = ""
    try:
        with open(path, encoding="utf-8", errors=errors, newline="") as file:
            for block in iter(lambda: file.read(CHUNK), ""):
                rest += block
                cut = _cut(rest) if len(block) == CHUNK else 0  # a short block is the last
                if cut:
                    yield rest[:cut]
                    rest = rest[cut:]
    except UnicodeDecodeError as error:
        raise common.DataError("%s: not UTF-8: %s; hint: --replace-invalid" % (path, error.reason), 2) from None
    yield rest


def is_json_lines(path):
    return path.endswith((".jsonl", ".jsonl.gz"))


def documents(path, field, errors):
    """Yields the text of each line of a JSONL file."""
    opened = gzip.open if path.endswith(".gz") else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8", errors=errors, newline="\n") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _text_of(json.loads(line), field, "%s:%d" % (path, number))
    except UnicodeDecodeError as error:
        raise common.DataError("%s: not UTF-8 after line %d: %s; hint: --replace-invalid" % (path, number, error.reason), 2) from None
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise common.DataError("%s:%d: not a line of JSON: %s" % (path, max(number, 1), error), 2) from None


def _text_of(value, field, place):
    if not isinstance(value, dict) or not isinstance(value.get(field), str):
        found = ", ".join(sorted(value)) if isinstance(value, dict) else type(value).__name__
        raise common.DataError("%s: expected an object with a text in `%s`, found %s; hint: --field" % (place, field, found), 2)
    return value[field]


def texts(path, field, errors):
    """Yields (text, whether it begins a document) of a file."""
    if is_json_lines(path):
        for text in documents(path, field, errors):
            yield text, True
    else:
        for number, text in enumerate(chunks(path, errors)):
            yield text, number == 0


def batches(parts, field, errors):
    """Yields (part, 0, texts, whether each begins a document), about CHUNK characters at a time, for lists of files."""
    for part, files in enumerate(parts):
        batch, size, all_begin = [], 0, True
        for text, begins in itertools.chain.from_iterable(texts(path, field, errors) for path in files):
            if batch and (begins != all_begin or size >= CHUNK):
                yield part, 0, batch, all_begin
                batch, size = [], 0
            batch.append(text)
            size += len(text)
            all_begin = begins
        if batch:
            yield part, 0, batch, all_begin


def write_shards(args, tokens, border, write):
    """The tokens from the border on validate."""
    for number, begin in enumerate(range(0, border, args.shard_tokens), 1):
        path = os.path.join(args.out, sharding.shard_name(args.name, number))
        common.write_shard(path, tokens[begin:min(begin + args.shard_tokens, border)], write=write)
    if border < len(tokens):
        common.write_shard(os.path.join(args.out, sharding.shard_name(args.name, 0)), tokens[border:], write=write)


# ---- which files ----

def is_text(path):
    try:
        common.check_text(path)
    except common.DataError:
        return False
    return True


def expand(names, endings):
    """The files that are named, checked, and those below the folders that are named."""
    files = []
    for name in names:
        if os.path.isdir(name):
            if not endings:
                raise common.DataError("%s: Is a directory; hint: --endings .txt,.md takes its files" % name, 2)
            found = sorted(os.path.join(where, file) for where, _, below in os.walk(name) for file in below if file.endswith(endings))
            files += [path for path in found if os.path.isfile(path) and is_text(path)]
        else:  # a missing one is found before the others are tokenised
            if name.endswith(".jsonl.gz"):
                open(name, "rb").close()
            else:
                common.check_text(name)
            files.append(name)
    return files


def distinct(files):
    """Without those that have the bytes of an earlier one. Threads, because a disk has many requests at a time."""
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        digests = list(pool.map(common.sha256_of, files))
    first = {}
    return [path for path, digest in zip(files, digests) if first.setdefault(digest, path) == path]


def parts_of(files, val_every):
    """(files to train on, files that validate)"""
    if not val_every:
        return files, []
    return [path for number, path in enumerate(files, 1) if number % val_every], files[val_every - 1::val_every]


def main():
    parser = common.Parser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--name", default="text", help="first part of the shards' names, default %(default)s")
    parser.add_argument("--val-fraction", type=float, default=0.1, metavar="F", help="default %(default)s; 0: no validation")
    parser.add_argument("--val-every", type=int, default=0, metavar="N", help="every Nth file validates, whole, in place of the last tenth")
    parser.add_argument("--endings", default=None, metavar="LIST", help="of the files to take from folders: .txt,.md")
    parser.add_argument("--distinct", action="store_true", help="of files with the same bytes only the first")
    parser.add_argument("--field", default="text", help="where a line of .jsonl has its text, default %(default)s")
    parser.add_argument("--replace-invalid", action="store_true", help="bytes that are not UTF-8 become U+FFFD")
    sharding.add_shard_tokens(parser)
    sharding.add_workers(parser)
    args = parser.parse_args()
    sharding.check_counts(args)
    if not 0 <= args.val_fraction < 1:
        raise common.DataError("--val-fraction %g: expected 0 to below 1" % args.val_fraction, 2)
    if os.path.basename(args.name) != args.name:
        raise common.DataError("--name %s: expected a name, found a path; hint: --out" % args.name, 2)
    if args.val_every < 0 or args.val_every == 1:
        raise common.DataError("--val-every %d: expected 2 or more, or 0" % args.val_every, 2)
    sharding.refuse_leftovers(args.out, args.name)
    files = expand(args.files, tuple(args.endings.split(",")) if args.endings else ())
    parts = parts_of(distinct(files) if args.distinct else files, args.val_every)
    errors = "replace" if args.replace_invalid else "strict"
    counts = [0, 0]

    def counted(pieces):
        for part, _, tokens in pieces:
            counts[part] += len(tokens)
            yield tokens

    with common.output(args.out, args.name):
        pieces = sharding.tokenized(batches(parts, args.field, errors), args.workers)
        with sharding.spooled(counted(pieces), args.out) as tokens:
            if all(token == common.EOT for token in tokens):
                raise common.DataError("%s: no text in it" % ", ".join(args.files), 2)
            border = counts[0] if args.val_every else len(tokens) - int(len(tokens) * args.val_fraction)
            with common.together() as write:
                write_shards(args, tokens, border, write)
                common.write_tokenizer(args.out, write)


if __name__ == "__main__":
    common.run(main)
