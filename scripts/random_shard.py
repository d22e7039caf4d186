#!/usr/bin/env python3
"""Writes a token shard (GPT-2's vocabulary) of 2^22 + 1 hashed tokens, for benchmarks.

usage: random_shard.py FILE.bin

Speed does not depend on what the tokens say, but zeros would flatter: a card draws less power on them."""
import array
import errno
import os
import sys

from cases import VOCABULARY
from comparison import EXIT_INPUT, EXIT_RUN, end_with, fail

MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024
N_TOKENS = (1 << 22) + 1


def hashed_tokens(n):
    """Knuth's MMIX generator, its upper bits."""
    x, tokens = 1, array.array("H")
    for _ in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        tokens.append((x >> 33) % VOCABULARY)
    return tokens


def header():
    return array.array("i", [MAGIC, VERSION, N_TOKENS] + [0] * (HEADER_BYTES // 4 - 3))


def write(path):
    """Under its own name the file is whole."""
    part = path if os.path.exists(path) and not os.path.isfile(path) else path + ".part"  # a device has no other name
    try:
        with open(part, "wb") as file:
            header().tofile(file)
            file.flush()  # a full disk shows before the seconds of work
            hashed_tokens(N_TOKENS).tofile(file)
        if part != path:
            os.replace(part, path)
    finally:
        if part != path and os.path.exists(part):
            os.remove(part)


def is_there(path):
    """Whether the file is this shard, by its size and beginning. Any other file is somebody's: a line, and the end."""
    if not os.path.isfile(path):
        return False
    begin = header().tobytes() + hashed_tokens(64).tobytes()
    with open(path, "rb") as file:
        if os.path.getsize(path) == HEADER_BYTES + 2 * N_TOKENS and file.read(len(begin)) == begin:
            return True
    fail(f"{path}: is there, and another file; hint: another name, or remove it")


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


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".bin"):
        fail("expected one FILE.bin; hint: random_shard.py --help")
    try:
        if not is_there(sys.argv[1]):
            write(sys.argv[1])
    except OSError as error:
        fail(f"{sys.argv[1]}: {error.strerror}", EXIT_RUN if error.errno == errno.ENOSPC else EXIT_INPUT)
    return 0


if __name__ == "__main__":
    end_with(main)
