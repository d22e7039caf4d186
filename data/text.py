#!/usr/bin/env python3
"""Your own files as token shards, with GPT-2's tokenizer or with --tokenizer: plain text, JSON Lines, parquet.

Writes OUT/NAME_train_000001.bin, ... and OUT/NAME_val_000000.bin, ... (the last tenth), and gpt2_tokenizer.bin. Every file is one
document, in the order given, with an end-of-text token before it; of a .jsonl, .ndjson or either as .gz every line is one, of a .parquet every
row, its text in --field. A glob in quotes stands for its files, sorted; a folder for the files below it, sorted by path, whose
names have one of --endings; those that are no text are left out. Files are read piece by piece, however large they are.
"""
import concurrent.futures
import os

import common
import documents
import sharding

def batches(parts, field, errors, progress):
    """Yields (part, 0, texts, whether each begins a document), about CHUNK characters at a time, for lists of files."""
    for part, files in enumerate(parts):
        batch, size, all_begin = [], 0, True
        for text, begins in documents.all_texts(files, field, errors, progress):
            if batch and (begins != all_begin or size >= documents.CHUNK):
                yield part, 0, batch, all_begin
                batch, size = [], 0
            batch.append(text)
            size += len(text)
            all_begin = begins
        if batch:
            yield part, 0, batch, all_begin


def write_shards(args, tokens, border, write):
    """The tokens from the border on validate."""
    for part, numbered_from, begin, end in (("train", 1, 0, border), ("val", 0, border, len(tokens))):
        for number, first in enumerate(range(begin, end, args.shard_tokens), numbered_from):
            path = os.path.join(args.out, sharding.shard_name(args.name, part, number))
            common.write_shard(path, tokens[first:min(first + args.shard_tokens, end)], write=write)


# ---- which files ----

def distinct(files):
    """Without those that have the bytes of an earlier one. Threads, because a disk has many requests at a time."""
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        digests = list(pool.map(common.sha256_of, files))
    first = {}
    for path, digest in zip(files, digests):
        first.setdefault(digest, path)
    return list(first.values())


def parts_of(files, val_every):
    """(files to train on, files that validate)"""
    if not val_every:
        return files, []
    if len(files) < val_every:
        raise common.DataError("--val-every %d: of %d files none validates; hint: a smaller one" % (val_every, len(files)), 2)
    return [path for number, path in enumerate(files, 1) if number % val_every], files[val_every - 1::val_every]


def make(args):
    """Writes the shards and the tokenizer."""
    files = documents.files_of(args)
    parts = parts_of(distinct(files) if args.distinct else files, args.val_every)
    eot = common.encoding(args.tokenizer)[1]
    progress = documents.Progress([path for part in parts for path in part])
    counts = [0, 0]

    def counted(pieces):
        for part, _, tokens in pieces:
            counts[part] += len(tokens)
            yield tokens

    texts = batches(parts, args.field, documents.errors_of(args), progress)
    with sharding.spooled(counted(sharding.tokenized(texts, args.workers, args.tokenizer)), args.out) as tokens:
        progress.end()
        if all(token == eot for token in tokens):
            raise common.DataError("%s: no text in it" % ", ".join(args.files), 2)
        border = counts[0] if args.val_every else len(tokens) - int(len(tokens) * args.val_fraction)
        with common.together() as write:
            write_shards(args, tokens, border, write)
            common.write_tokenizer(args.out, write, args.tokenizer)
        if border == len(tokens) and args.val_fraction:
            common.say("note: none of %d tokens validates; hint: a larger --val-fraction, or other files for --val" % len(tokens))


def main():
    parser = common.Parser(__doc__)
    documents.add_reading(parser)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--name", default="text", help="first part of the shards' names, default %(default)s")
    parser.add_argument("--val-fraction", type=float, default=0.1, metavar="F", help="default %(default)s; 0: no validation")
    parser.add_argument("--val-every", type=int, default=0, metavar="N", help="every Nth file validates, whole, in place of the last tenth")
    parser.add_argument("--distinct", action="store_true", help="of files with the same bytes only the first")
    parser.add_argument("--tokenizer", default=None, metavar="DIR", help="with tokenizer.json, as data/train_tokenizer.py writes it; default: GPT-2's")
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
    with common.output(args.out, args.name):
        sharding.refuse_leftovers(args.out, args.name)
        make(args)


if __name__ == "__main__":
    common.run(main)
