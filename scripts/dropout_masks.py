"""The masks of dropout in Python's and PyTorch's integers: llmc/model/dropout.h says the same in C."""
MASK32, MASK64, GOLDEN = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x9E3779B97F4A7C15


def mix64(x):
    """SplitMix64's finaliser (Steele, Lea & Flood 2014, figure 16)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def halves(x):
    """Of 64 bits: both halves, added without carry, and the upper one."""
    return (x ^ (x >> 32)) & MASK32, x >> 32 & MASK32


def threshold(p):
    """256 p, as a mask has it."""
    return min(max(int(p * 256 + 0.5), 1), 255)


def scale(p):
    """What an element that is kept is multiplied with."""
    return 256 / (256 - threshold(p))


def matrix_begin(key, site, matrix):
    """(start, twist): where the mask of a matrix begins."""
    word = mix64((mix64((key + GOLDEN * (site + 1)) & MASK64) + GOLDEN * matrix) & MASK64)
    return word & MASK32, word >> 32


def kept(start, twist, row, column, p):
    """Whether elements are kept. start, twist: matrix_begin()'s, or int64 tensors of several; row, column: int64 tensors."""
    counter = (row // 64 * 4 + row % 8 // 2) * 65536 + column // 64 * 4 + column % 8 // 2
    n, m = row % 64 // 16 * 4 + row // 8 % 2 * 2 + row % 2, column % 64 // 16 * 2 + column // 8 % 2
    u = (0x85EBCA6B + n * (0xC2B2AE35 + n * 0x27D4EB2E)) & MASK32
    v = (0xA3D5C9E5 + m * (0x165667B1 + m * 0x2545F492)) & MASK32
    t, t2 = halves(((start + counter * 0x9E3779B9) & MASK32) * 0xD2511F53)
    t = t ^ twist
    s, s2 = halves(t * 0xCD9E8D57)
    half = ((s * u + t & MASK32) * v + s2 * u + t2) >> column % 2 * 16 & 0xFFFF
    larger = (half - 0x7F).where(half >= 0x8000, 0x7F80 - half) & 0xFFFF  # of the bf16 that it is
    return larger >= threshold(p) * 256
