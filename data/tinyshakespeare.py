#!/usr/bin/env python3
"""TinyShakespeare as token shards, byte for byte those of llm.c.

Writes OUT/tiny_shakespeare_train.bin (305,260 tokens), OUT/tiny_shakespeare_val.bin (32,768 tokens) and
gpt2_tokenizer.bin. The text comes from --source, or the environment variable TEXT, or its public address.
"""
import os

import common

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SIZE = 1115394
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
VAL_TOKENS = 32768
SHARDS_SHA256 = {
    "val": "fe99db720dc7c83e694806d4e047a952909411da1daccde4ccc2e55f40882a62",
    "train": "8a70606be574040c26d225694f5f9759973b419852d22f7fe5c118e1b359dcc8",
}


def tokenize(text):
    """The text cut after each blank line; an end-of-text token before each section."""
    encoding = common.gpt2_encoding()
    sections = text.split("\n\n")
    tokens = []
    for i, section in enumerate(sections):
        tokens.append(common.EOT)
        tokens.extend(encoding.encode_ordinary(section + ("\n\n" if i + 1 < len(sections) else "")))
    return tokens


def main():
    parser = common.Parser(__doc__)
    parser.add_argument("--source", default=os.environ.get("TEXT") or None, metavar="FILE", help="a local copy of the text")
    parser.add_argument("--out", default=common.default_out("tinyshakespeare"), metavar="DIR")
    args = parser.parse_args()
    with common.output(args.out, "tiny_shakespeare"), common.together() as write:
        source = args.source or common.fetched(URL, os.path.join(args.out, "tiny_shakespeare.txt"),
                                               "a local copy: make TEXT=FILE data/tinyshakespeare, or --source FILE", SIZE, SHA256)
        with common.hint("these shards are of one text; data/text.py takes any" if args.source else "without that file it is fetched again"):
            common.check_file(source, SIZE, SHA256)
        with open(source, encoding="ascii", newline="") as file:
            tokens = tokenize(file.read())
        for name, part in (("val", tokens[:VAL_TOKENS]), ("train", tokens[VAL_TOKENS:])):
            common.write_shard(os.path.join(args.out, "tiny_shakespeare_%s.bin" % name), part, SHARDS_SHA256[name], write)
        common.write_tokenizer(args.out, write)


if __name__ == "__main__":
    common.run(main)
