#!/usr/bin/env python3
"""Your own text files as token shards with GPT-2's tokenizer.

Writes OUT/NAME_train_000001.bin, ... and OUT/NAME_val_000000.bin (the last tenth), and gpt2_tokenizer.bin. Every file is one
document, in the order given, with an end-of-text token before it; of a .jsonl or .jsonl.gz every line is one, its text in --field.
"""
import gzip
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
                cut = _cut(rest)
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


def _batches(files, field, errors):
    """Yields (file, number, texts, whether each text begins a document)."""
    for index, path in enumerate(files):
        if is_json_lines(path):
            texts = documents(path, field, errors)
            for number in itertools.count(0, sharding.BATCH_DOCUMENTS):
                batch = list(itertools.islice(texts, sharding.BATCH_DOCUMENTS))
                if not batch:
                    break
                yield index, number, batch, True
        else:
            for number, text in enumerate(chunks(path, errors)):
                yield index, number, [text], number == 0


def write_shards(args, tokens, write):
    n_val = int(len(tokens) * args.val_fraction)
    border = len(tokens) - n_val
    for number, begin in enumerate(range(0, border, args.shard_tokens), 1):
        path = os.path.join(args.out, sharding.shard_name(args.name, number))
        common.write_shard(path, tokens[begin:min(begin + args.shard_tokens, border)], write=write)
    if n_val:
        common.write_shard(os.path.join(args.out, sharding.shard_name(args.name, 0)), tokens[border:], write=write)


def main():
    parser = common.Parser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--name", default="text", help="first part of the shards' names, default %(default)s")
    parser.add_argument("--val-fraction", type=float, default=0.1, metavar="F", help="default %(default)s; 0: no validation")
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
    for path in args.files:  # a missing one is found before the others are tokenised
        if path.endswith(".jsonl.gz"):
            open(path, "rb").close()
        else:
            common.check_text(path)
    sharding.refuse_leftovers(args.out, args.name)
    errors = "replace" if args.replace_invalid else "strict"
    with common.output(args.out, args.name):
        pieces = sharding.tokenized(_batches(args.files, args.field, errors), args.workers)
        with sharding.spooled((tokens for _, _, tokens in pieces), args.out) as tokens:
            if all(token == common.EOT for token in tokens):
                raise common.DataError("%s: no text in it" % ", ".join(args.files), 2)
            with common.together() as write:
                write_shards(args, tokens, write)
                common.write_tokenizer(args.out, write)


if __name__ == "__main__":
    common.run(main)
