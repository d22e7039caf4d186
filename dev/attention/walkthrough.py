#!/usr/bin/env python3
"""The online softmax by hand: m, l and o for 4 keys of 2 numbers, 2 keys at a time, against the plain softmax.

Prints every step; ends with the largest difference and exit code 1 if it is more than rounding.
"""
import math
import sys

N, D, BLOCK = 4, 2, 2
Q = [1.0, 0.5]
K = [[0.2, -1.0], [1.5, 0.3], [-0.4, 0.9], [2.0, 1.0]]
V = [[1.0, 2.0], [-1.0, 0.5], [0.0, 3.0], [4.0, -2.0]]


def score(key):
    """q.k / sqrt(d), as forward has it."""
    return sum(q * k for q, k in zip(Q, key)) / math.sqrt(D)


def plain():
    """Softmax over all keys at once, then the weighted mean of the values."""
    scores = [score(key) for key in K]
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    return [sum(w * v[d] for w, v in zip(weights, V)) / sum(weights) for d in range(D)]


def online():
    """The same from one pass over blocks of keys: what each block does to m, l and o, as {name: value}."""
    m, l, o = -math.inf, 0.0, [0.0] * D
    for first in range(0, N, BLOCK):
        scores = [score(key) for key in K[first : first + BLOCK]]
        new_m = max([m] + scores)
        shrink = math.exp(m - new_m)
        weights = [math.exp(s - new_m) for s in scores]
        l = l * shrink + sum(weights)
        o = [o[d] * shrink + sum(w * v[d] for w, v in zip(weights, V[first : first + BLOCK])) for d in range(D)]
        m = new_m
        yield {"keys": first + BLOCK, "s0": scores[0], "s1": scores[1], "m": m, "shrink": shrink, "p0": weights[0], "p1": weights[1],
               "l": l, "o0": o[0], "o1": o[1], "o0_l": o[0] / l, "o1_l": o[1] / l}


def walk():
    """The lines of the walk-through, the steps, and the largest difference from the plain softmax."""
    steps, lines = list(online()), []
    for step in steps:
        lines += [
            "keys {:.0f} and {:.0f}: scores {s0:+.6f} {s1:+.6f}".format(step["keys"] - BLOCK, step["keys"] - 1, **step),
            "  m = {m:+.6f}   what was there shrinks by e^(m_old - m) = {shrink:.6f}".format(**step),
            "  P = {p0:.6f} {p1:.6f}   l = {l:.6f}   o = {o0:+.6f} {o1:+.6f}".format(**step),
        ]
    end, want = steps[-1], plain()
    difference = max(abs(a - b) for a, b in zip((end["o0_l"], end["o1_l"]), want))
    lines += [
        "end: o / l = {o0_l:+.9f} {o1_l:+.9f}   L = m + log l = {:+.9f}".format(end["m"] + math.log(end["l"]), **end),
        f"plain softmax: {want[0]:+.9f} {want[1]:+.9f}   largest difference {difference:.1e}",
    ]
    return lines, steps, difference


def main():
    lines, _, difference = walk()
    print("\n".join(lines))
    return 0 if difference <= 1e-15 else 1


if __name__ == "__main__":
    sys.exit(main())
