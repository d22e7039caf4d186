#!/usr/bin/env python3
"""HellaSwag as the file that --hellaswag scores, byte for byte as llm.c has it but for the vocabulary in its header.

Writes OUT/hellaswag_val.bin: of each item the tokens of its context and of its four endings, a space before each. The
10,042 items come from --source, or from their public address: lines of JSON with `ctx`, `endings` and `label`. A download
is kept where all its lines are items and none is missing.
"""
import array
import gzip
import json
import os
import struct

import common
import documents

URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
ITEMS = 10042  # of the public file
MAGIC, VERSION, BEGIN = 20240522, 1, 2**16 - 1


def _item(value, place):
    """Context, endings, label of a line."""
    if not isinstance(value, dict):
        raise common.DataError("%s: expected an object, found %s" % (place, type(value).__name__), 2)
    context, endings, label = value.get("ctx"), value.get("endings"), value.get("label")
    if not isinstance(context, str) or not context:
        raise common.DataError("%s: expected a text in `ctx`, found %.40r" % (place, context), 2)
    if not isinstance(endings, list) or len(endings) != 4 or not all(isinstance(text, str) for text in endings):
        raise common.DataError("%s: expected four texts in `endings`, found %.40r" % (place, endings), 2)
    half = documents.HALVES.search("".join([context, *endings]))
    if half:
        raise common.DataError("%s: \\u%04x is half a surrogate pair, which is no character" % (place, ord(half.group())), 2)
    if str(label) not in ("0", "1", "2", "3"):
        raise common.DataError("%s: expected 0 to 3 in `label`, found %.40r; hint: the test set has no labels" % (place, label), 2)
    return context, endings, int(label)


def items(path, name=None):
    """Yields (context, endings, label). name: what messages call the file, the path by default."""
    opened = gzip.open if path.lower().endswith(".gz") else open
    number = 1
    try:
        with opened(path, "rt", encoding="utf-8", newline="\n") as file:
            for line in file:
                if line.strip():
                    yield _item(json.loads(line), "%s:%d" % (name or path, number))
                number += 1
    except (ValueError, RecursionError, *documents.DAMAGED) as error:  # not UTF-8, not JSON, cut short
        raise common.DataError("%s:%d: not a line of JSON: %s" % (name or path, number, error), 2) from None


def check_download(path):
    """The file's size and sha256 are not known here; one that is cut has a broken line, or too few."""
    found = sum(1 for _ in items(path, URL))
    if found != ITEMS:
        raise common.DataError("%s: expected %d items, found %d" % (URL, ITEMS, found), 2)


def encoder(tokenizer):
    """(a function from text to tokens, how many tokens there are)"""
    if tokenizer == "bytes":
        return lambda text: list(text.encode()), 256
    own = None if tokenizer == "gpt2" else tokenizer
    return common.encoding(own)[0], len(common.tokens_of(own)[0])


def stream_of(index, item, encode):
    """The uint16 of an item: the file's format is in llmc/data/choices.h."""
    context, endings, label = item
    texts = [encode(context)] + [encode(" " + ending) for ending in endings]
    stream = [BEGIN, 0, index & BEGIN, label, len(endings)]
    for tokens in texts:
        stream += [len(tokens), *tokens]
    stream[1] = 2 * len(stream)
    return stream


def refuse_other(path, content):
    """Of the same items in the same tokens it is made again; any other that is there stays."""
    try:
        with open(path, "rb") as file:
            found = file.read()
    except FileNotFoundError:
        return
    if found != content:
        raise common.DataError("%s: there already, of other items or in another tokenizer's tokens; hint: another --out, or remove it" % path, 2)


def make(path, source, tokenizer):
    encode, vocabulary = encoder(tokenizer)
    n, longest, stream = 0, 0, array.array("H")
    for item in items(source):
        one = stream_of(n, item, encode)
        if one[1] >= BEGIN:
            raise common.DataError("%s: item %d has %d tokens, too many for the format" % (source, n, len(one)), 2)
        n, longest = n + 1, max(longest, one[1])
        stream.extend(one)
    if n == 0:
        raise common.DataError("%s: no items in it" % source, 2)
    header = struct.pack("<5i", MAGIC, VERSION, n, longest, vocabulary).ljust(1024, b"\0")
    content = header + bytes(common.little_endian(stream))
    refuse_other(path, content)
    common.write_file(path, content)
    common.say("%s: %s items, %s tokens" % (path, format(n, ","), format(len(stream) - 10 * n, ",")))


def main():
    parser = common.Parser(__doc__)
    parser.add_argument("--source", metavar="FILE", help="a local copy: .jsonl or .jsonl.gz")
    parser.add_argument("--tokenizer", default="gpt2", metavar="gpt2|bytes|DIR",
                        help="that of the model, default %(default)s; DIR: with tokenizer.json, as data/train_tokenizer.py writes it")
    parser.add_argument("--out", default=common.default_out("hellaswag"), metavar="DIR")
    args = parser.parse_args()
    with common.output(args.out, "hellaswag"):
        source = args.source or common.fetched(URL, os.path.join(args.out, "hellaswag_val.jsonl"), "a local copy, as --source FILE",
                                               check=check_download)
        make(os.path.join(args.out, "hellaswag_val.bin"), source, args.tokenizer)


if __name__ == "__main__":
    common.run(main)
