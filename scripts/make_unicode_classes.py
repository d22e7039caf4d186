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
RANGES_PER_LINE = 3

HEADER = """\
/* Unicode {version}: the letters (general category L*), numbers (N*) and white space (White_Space), as sorted
 * ranges; all other code points are CLASS_OTHER. Made by scripts/make_unicode_classes.py: do not edit. */
#pragma once
#include <stdint.h>

#define UNICODE_CLASSES_VERSION "{version}"

typedef enum {{ CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE }} UnicodeClass;

typedef struct UnicodeRange {{
    uint32_t first, last; /* code points, both inclusive */
    UnicodeClass kind;
}} UnicodeRange;

/* clang-format off */
static const UnicodeRange unicode_ranges[] = {{
"""


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
    entries = ["{0x%04X, 0x%04X, CLASS_%s}," % entry for entry in ranges()]
    sys.stdout.write(HEADER.format(version=unicodedata.unidata_version))
    for i in range(0, len(entries), RANGES_PER_LINE):
        print("    " + " ".join(entries[i:i + RANGES_PER_LINE]))
    print("};\n/* clang-format on */")


if __name__ == "__main__":
    main()
