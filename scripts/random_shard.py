#!/usr/bin/env python3
"""Writes a token shard (GPT-2's vocabulary) of 2^22 + 1 hashed tokens, for benchmarks.

usage: random_shard.py FILE.bin

Speed does not depend on what the tokens say, but zeros would flatter: a card draws less power on them."""
import array
import errno
import os
import sys

from cases import VOCABULARY
from comparison import EXIT_INPUT, EXIT_RUN, fail

MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024
N_TOKENS = (1 << 22) + 1


def write(path):
    x, tokens = 1, array.array("H")
    with open(path, "wb") as file:
        array.array("i", [MAGIC, VERSION, N_TOKENS] + [0] * (HEADER_BYTES // 4 - 3)).tofile(file)
        file.flush()  # a full disk shows before the seconds of work
        for _ in range(N_TOKENS):
            x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            tokens.append((x >> 33) % VOCABULARY)
        tokens.tofile(file)


def check(path):
    """Ends the program unless the file of --train begins as a shard does."""
    try:
        with open(path, "rb") as file:
            header = array.array("i", file.read(8))
    except OSError as error:
        fail(f"--train {path}: cannot be read: {error.strerror}")
    except ValueError:
        header = []
    if list(header) != [MAGIC, VERSION]:
        fail(f"--train {path}: expected a token shard (it begins with {MAGIC}, {VERSION}), found {list(header)}; "
             "hint: make data/tinyshakespeare makes one")


def given_or_random(path, folder):
    """The path of --train's shard, or, where there is none, that of one in the folder."""
    if path:
        return os.path.abspath(path)
    shard = os.path.join(folder, "random_000001.bin")
    write(shard)
    return shard


if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        sys.exit(print(__doc__))
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".bin"):
        fail("expected one FILE.bin; hint: random_shard.py --help")
    try:
        write(sys.argv[1])
    except OSError as error:
        fail(f"{sys.argv[1]}: {error.strerror}", EXIT_RUN if error.errno == errno.ENOSPC else EXIT_INPUT)
