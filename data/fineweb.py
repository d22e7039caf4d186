#!/usr/bin/env python3
"""FineWeb and FineWeb-Edu as token shards of 10^8 tokens; shard 000000 validates.

Writes OUT/fineweb_{val,train}_NNNNNN.bin (edu_fineweb_... for the edu versions) and gpt2_tokenizer.bin. Parquet
files come from Hugging Face one after the other, are checked, tokenised by all cores and removed again. An interrupted
run goes on at the last finished shard: call it again.
"""
import glob
import os

import common
import documents
import hub
import sharding

# version: (dataset repository, folder of its parquet files, output folder, prefix of the shards)
VERSIONS = {
    "10B": ("HuggingFaceFW/fineweb", "sample/10BT", "fineweb10B", "fineweb"),
    "100B": ("HuggingFaceFW/fineweb", "sample/100BT", "fineweb100B", "fineweb"),
    "edu10B": ("HuggingFaceFW/fineweb-edu", "sample/10BT", "edu_fineweb10B", "edu_fineweb"),
    "edu100B": ("HuggingFaceFW/fineweb-edu", "sample/100BT", "edu_fineweb100B", "edu_fineweb"),
}
PRETOKENIZED = {"10B": "kjj0/fineweb10B-gpt2"}  # the same data, tokenised by others into the same format


def read_parquet(path):
    """Yields the column `text`, row by row."""
    return (text for text, _ in documents.rows(path))


def download_shards(version, folder, prefix, max_shards):
    """Fetches shards that are tokenised already; those that are there stay, and others of their names are an error."""
    if version not in PRETOKENIZED:
        raise common.DataError("--pretokenized: there is only --version %s" % ", ".join(PRETOKENIZED), 2)
    state = os.path.join(folder, sharding.STATE_FILE)
    if os.path.exists(state):
        raise common.DataError("%s: the shards there are made from parquet, by a call without --pretokenized; hint: another --out" % state, 2)
    source = hub.Dataset(PRETOKENIZED[version])
    names = sorted(name for name in source.files() if name.startswith(prefix) and name.endswith(".bin"))
    names.sort(key=lambda name: "_val_" not in name)
    for name in names[:max_shards]:
        path = source.fetch(name, folder, replaces=False)
        common.check_shard(path)
        common.say("%s: complete" % path)


def make_from_folder(args, out, prefix):
    files = documents.glob_sorted(os.path.join(glob.escape(args.source), "*.parquet"))
    if not files:
        raise common.DataError("%s: no *.parquet files there" % args.source, 2)
    settings = {"source": os.path.abspath(args.source), "names": [os.path.basename(name) for name in files]}
    sharding.make_shards(out, prefix, files, read_parquet, settings, shard_tokens=args.shard_tokens,
                         workers=args.workers, max_shards=args.max_shards)


def make_from_hub(args, out, prefix, repository, inside):
    # A run that goes on reads the revision that it began with.
    source = hub.Dataset(repository, sharding.saved_setting(out, "revision"))
    files = sorted(name for name in source.files() if name.startswith(inside) and name.endswith(".parquet"))
    if not files:
        raise common.DataError("Hugging Face, dataset %s: no parquet files in %s" % (repository, inside))
    downloads = os.path.join(out, "download")

    def discard(name):
        path = os.path.join(downloads, name)
        if not args.keep and os.path.exists(path):
            os.remove(path)

    settings = {"repository": repository, "revision": source.revision}
    sharding.make_shards(out, prefix, files, read_parquet, settings, lambda name: source.fetch(name, downloads),
                         discard, args.shard_tokens, args.workers, args.max_shards)


def main():
    parser = common.Parser(__doc__)
    parser.add_argument("--version", choices=VERSIONS, default="10B")
    parser.add_argument("--out", metavar="DIR", help="default: data/fineweb10B and so on")
    parser.add_argument("--source", metavar="DIR", help="a folder of parquet files with a column `text`, instead of a download")
    parser.add_argument("--pretokenized", action="store_true",
                        help="download finished shards (%s) instead of parquet" % ", ".join(PRETOKENIZED.values()))
    parser.add_argument("--max-shards", type=int, metavar="N", help="stop after so many; a later call goes on")
    parser.add_argument("--keep", action="store_true", help="keep the parquet files; a call without it removes those whose shards are written")
    sharding.add_shard_tokens(parser)
    sharding.add_workers(parser)
    args = parser.parse_args()
    sharding.check_counts(args)
    repository, inside, folder, prefix = VERSIONS[args.version]
    out = args.out or common.default_out(folder)
    with common.output(out, prefix):
        if args.pretokenized:
            download_shards(args.version, out, prefix, args.max_shards)
        elif args.source:
            make_from_folder(args, out, prefix)
        else:
            make_from_hub(args, out, prefix, repository, inside + "/")
        common.write_tokenizer(out)


if __name__ == "__main__":
    common.run(main)
