#!/usr/bin/env python3
"""Attention in pure Python, with numbers and over a graph of scalar autograd nodes: the slow end of the ladder.

  dev/attention/textbook.py [N...]      default: 8 16 32 64; head size 16, not causal

Prints milliseconds a call (the best of three, as forward alone, and with backward through the nodes), for one query
and for N queries against N keys, and checks that both give the same output. The lab's rows `textbook` and `autograd_graph` are the same in C.
"""
import math
import random
import sys
import time

D = 16


class Node:
    """A number that remembers what it was made of, and hands gradients back."""

    __slots__ = ("value", "gradient", "parents", "slopes")

    def __init__(self, value, parents=(), slopes=()):
        self.value, self.gradient, self.parents, self.slopes = value, 0.0, parents, slopes

    def __add__(self, other):
        return Node(self.value + other.value, (self, other), (1.0, 1.0))

    def __mul__(self, other):
        return Node(self.value * other.value, (self, other), (other.value, self.value))

    def __truediv__(self, other):
        ratio = self.value / other.value
        return Node(ratio, (self, other), (1 / other.value, -ratio / other.value))

    def exp(self):
        e = math.exp(self.value)
        return Node(e, (self,), (e,))


def total(terms):
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def attention(q, k, v, number, exp):
    """Rows of softmax(q k^T / sqrt(d)) v; number() makes a constant, exp() an exponential, of floats or nodes."""
    scale, out = number(1 / math.sqrt(D)), []
    for query in q:
        weights = [exp(total([a * b for a, b in zip(query, key)]) * scale) for key in k]
        denominator = total(weights)
        out.append([total([w * value[d] for w, value in zip(weights, v)]) / denominator for d in range(D)])
    return out


def backward(outputs):
    """Gradients of the sum of all outputs, in every node: parents after children."""
    order, seen, stack = [], set(), [(node, False) for row in outputs for node in row]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((parent, False) for parent in node.parents)
    for row in outputs:
        for node in row:
            node.gradient = 1.0
    for node in reversed(order):
        for parent, slope in zip(node.parents, node.slopes):
            parent.gradient += slope * node.gradient


def best_ms(call):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def measure(n, n_queries, nodes=True):
    """{name: ms} of one length, and whether numbers and nodes agree; without nodes that of numbers alone."""
    random.seed(n)
    rows = [[[random.gauss(0, 1) for _ in range(D)] for _ in range(count)] for count in (n_queries, n, n)]

    def with_numbers():
        return attention(*rows, float, math.exp)

    def with_nodes():
        leaves = [[[Node(x) for x in row] for row in part] for part in rows]
        return attention(*leaves, Node, Node.exp)

    ms = {"python": best_ms(with_numbers)}
    if not nodes:
        return ms, True
    ms["python_nodes"], ms["python_nodes_backward"] = best_ms(with_nodes), best_ms(lambda: backward(with_nodes()))
    pairs = zip(with_numbers(), with_nodes())
    return ms, all(abs(a - b.value) < 1e-12 for x, y in pairs for a, b in zip(x, y))


def main():
    if sys.argv[1:2] in (["-h"], ["--help"]):
        return print(__doc__)
    try:
        sizes = [int(text) for text in sys.argv[1:]] or [8, 16, 32, 64]
        if min(sizes) < 1:
            raise ValueError(f"{min(sizes)} is below 1")
    except ValueError as reason:
        print(f"error: textbook.py: expected lengths: {reason}", file=sys.stderr)
        return 2
    print(f"head size {D}, ms a call, pure Python {sys.version.split()[0]}")
    print(f"{'queries':>7} {'N':>5} {'numbers':>12} {'nodes':>12} {'nodes + backward':>18}")
    agree = True
    for queries, n in [(1, n) for n in sizes] + [(n, n) for n in sizes]:
        ms, same = measure(n, queries)
        print(f"{queries:7d} {n:5d} {ms['python']:12.3f} {ms['python_nodes']:12.3f} {ms['python_nodes_backward']:18.3f}"
              f"   {'' if same else 'DIFFERENT'}")
        agree = agree and same
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
