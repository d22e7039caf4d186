#!/usr/bin/env python3
"""Writes llmc/tokenizer/unicode_classes.h, the character classes that GPT-2's split pattern needs.

    pip install unicodedata2==16.0.0
    scripts/make_unicode_classes.py > llmc/tokenizer/unicode_classes.h

Takes the module unicodedata2 where it is installed, because it can be had at the Unicode version that tiktoken's
regex engine uses (16.0), and Python's own unicodedata otherwise. The version is written into the table.
"""
import argparse
import sys

from comparison import Parser

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

# The property White_Space of PropList.txt (what \\s means in a Unicode regex); unicodedata does not carry it.
WHITE_SPACE = {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
               *range(0x09, 0x0E), 0x20, *range(0x2000, 0x200B)}
CLASS_OF_CATEGORY = {"L": "LETTER", "N": "NUMBER"}  # first letter of the general category: \p{L}, \p{N}
TABLES = {"LETTER": "unicode_letters", "NUMBER": "unicode_numbers", "SPACE": "unicode_spaces"}

HEADER = """\
/* Unicode {version}: the letters (general category L*), numbers (N*) and white space (White_Space), as sorted
 * ranges of code points, first and last. Made by scripts/make_unicode_classes.py: do not edit. */
#pragma once
#include <stdint.h>

/* clang-format off */"""


def class_of(code_point):
    if code_point in WHITE_SPACE:
        return "SPACE"
    return CLASS_OF_CATEGORY.get(unicodedata.category(chr(code_point))[0])


def ranges():
    """Yields (first, last, class) in order, for the three classes that the table holds."""
    first, current = 0, None
    for code_point in range(sys.maxunicode + 2):
        kind = class_of(code_point) if code_point <= sys.maxunicode else None
        if kind != current:
            if current:
                yield first, code_point - 1, current
            first, current = code_point, kind


def main():
    Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = list(ranges())
    print(HEADER.format(version=unicodedata.unidata_version))
    for kind, name in TABLES.items():
        line = "   "
        print(f"static const uint32_t {name}[][2] = {{")
        for entry in ("{0x%04X, 0x%04X}," % (first, last) for first, last, of in found if of == kind):
            if len(line) + 1 + len(entry) > 120:
                print(line)
                line = "   "
            line += " " + entry
        print(line + "\n};")
    print("/* clang-format on */")


if __name__ == "__main__":
    main()
