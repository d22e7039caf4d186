#!/usr/bin/env python3
"""TinyStories as token shards: OUT/TinyStories_val.bin, the first of the archive's files of stories, and
OUT/TinyStories_train.bin, the others; and gpt2_tokenizer.bin.

The archive (1.6 GB) comes from Hugging Face and is checked; it stays in OUT/download until both shards are written.
"""
import json
import os
import tarfile

import common
import hub
import sharding

REPOSITORY, ARCHIVE = "roneneldan/TinyStories", "TinyStories_all_data.tar.gz"


def _batches(archive, members):
    """Yields (member, first story, stories, True)."""
    for index, member in enumerate(members):
        stories = [story["story"].strip() for story in json.load(archive.extractfile(member))]
        common.say("%s: %s stories" % (member, format(len(stories), ",")))
        for start in range(0, len(stories), sharding.BATCH_DOCUMENTS):
            yield index, start, stories[start:start + sharding.BATCH_DOCUMENTS], True


def make_shards(path, out, workers, write):
    try:
        with tarfile.open(path) as archive:
            members = sorted(name for name in archive.getnames() if name.endswith(".json"))
            if len(members) < 2:
                raise common.DataError("%s: expected two or more files of stories (.json), found %d" % (path, len(members)), 2)
            for name, part in (("val", members[:1]), ("train", members[1:])):
                shard = os.path.join(out, "TinyStories_%s.bin" % name)
                if os.path.exists(shard):
                    common.check_shard(shard)
                    continue
                pieces = (tokens for _, _, tokens in sharding.tokenized(_batches(archive, part), workers))
                with sharding.spooled(pieces, out) as tokens:
                    common.write_shard(shard, tokens, write=write)
    except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise common.DataError("%s: not an archive of stories: %s: %s" % (path, type(error).__name__, error), 2) from None


def main():
    parser = common.Parser(__doc__)
    parser.add_argument("--source", metavar="FILE", help="a local copy of " + ARCHIVE)
    parser.add_argument("--out", default=common.default_out("tinystories"), metavar="DIR")
    parser.add_argument("--keep", action="store_true", help="keep the archive")
    sharding.add_workers(parser)
    args = parser.parse_args()
    sharding.check_counts(args)
    with common.output(args.out, "TinyStories"):
        path = args.source or hub.Dataset(REPOSITORY).fetch(ARCHIVE, os.path.join(args.out, "download"))
        with common.together() as write:
            make_shards(path, args.out, args.workers, write)
            common.write_tokenizer(args.out, write)
        if not args.source and not args.keep:
            os.remove(path)


if __name__ == "__main__":
    common.run(main)
