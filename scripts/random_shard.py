#!/usr/bin/env python3
"""Writes a token shard (GPT-2's vocabulary) of 2^22 + 1 hashed tokens, for benchmarks.

usage: random_shard.py FILE.bin

Speed does not depend on what the tokens say, but zeros would flatter: a card draws less power on them."""
import array
import sys

N_TOKENS, VOCABULARY = (1 << 22) + 1, 50257


def write(path):
    x, tokens = 1, array.array("H")
    for _ in range(N_TOKENS):
        x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        tokens.append((x >> 33) % VOCABULARY)
    with open(path, "wb") as file:
        array.array("i", [20240520, 1, N_TOKENS] + [0] * 253).tofile(file)
        tokens.tofile(file)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    write(sys.argv[1])
