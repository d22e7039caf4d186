#!/usr/bin/env python3
"""Your own text files as token shards with GPT-2's tokenizer.

Writes OUT/NAME_train_000001.bin, ... and OUT/NAME_val_000000.bin (the last tenth), and data/gpt2_tokenizer.bin. Every
file is one document, in the order given, with an end-of-text token before it.
"""
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


def _batches(files, errors):
    for index, path in enumerate(files):
        for number, text in enumerate(chunks(path, errors)):
            yield index, number, [text]


def tokens_of(files, errors, workers):
    """Yields arrays of tokens, end-of-text before each file."""
    import numpy as np
    for _, number, tokens in sharding.tokenized(_batches(files, errors), workers, eot=False):
        if number == 0:
            yield np.array([common.EOT], dtype=np.uint16)
        yield tokens


def write_shards(args, tokens):
    n_val = int(len(tokens) * args.val_fraction)
    border = len(tokens) - n_val
    for number, begin in enumerate(range(0, border, args.shard_tokens), 1):
        path = os.path.join(args.out, sharding.shard_name(args.name, number))
        common.write_shard(path, tokens[begin:min(begin + args.shard_tokens, border)])
    if n_val:
        common.write_shard(os.path.join(args.out, sharding.shard_name(args.name, 0)), tokens[border:])


def main():
    parser = common.Parser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--name", default="text", help="first part of the shards' names, default %(default)s")
    parser.add_argument("--val-fraction", type=float, default=0.1, metavar="F", help="default %(default)s; 0: no validation")
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
        open(path, "rb").close()
    sharding.refuse_leftovers(args.out, args.name)
    errors = "replace" if args.replace_invalid else "strict"
    with sharding.spooled(tokens_of(args.files, errors, args.workers), args.out) as tokens:
        if len(tokens) <= len(args.files):
            raise common.DataError("%s: no text in it" % ", ".join(args.files), 2)
        write_shards(args, tokens)
    common.write_tokenizer()


if __name__ == "__main__":
    common.run(main)
