#!/usr/bin/env python3
"""Writes a token shard (GPT-2's vocabulary) of 2^22 + 1 hashed tokens, for benchmarks.

usage: random_shard.py FILE.bin

Speed does not depend on what the tokens say, but zeros would flatter: a card draws less power on them."""
import array
import errno
import sys

from comparison import EXIT_INPUT, EXIT_RUN, fail

N_TOKENS, VOCABULARY = (1 << 22) + 1, 50257


def write(path):
    x, tokens = 1, array.array("H")
    with open(path, "wb") as file:
        array.array("i", [20240520, 1, N_TOKENS] + [0] * 253).tofile(file)
        file.flush()  # a full disk shows before the seconds of work
        for _ in range(N_TOKENS):
            x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            tokens.append((x >> 33) % VOCABULARY)
        tokens.tofile(file)


if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        sys.exit(print(__doc__))
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".bin"):
        fail("expected one FILE.bin; hint: random_shard.py --help")
    try:
        write(sys.argv[1])
    except OSError as error:
        fail(f"{sys.argv[1]}: {error.strerror}", EXIT_RUN if error.errno == errno.ENOSPC else EXIT_INPUT)
