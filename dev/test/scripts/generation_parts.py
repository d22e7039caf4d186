"""scripts/compare_generation.py, with a stand-in for ours and for the peer."""
import csv
import types

from parts import Parts

import compare_generation
import comparison

OURS = """#!/bin/sh
printf '%s ' "$@" >>"${0%/*}/words"; echo >>"${0%/*}/words"
echo '5 6 7 8'
[ "$5" = 1 ] || printf -- '---\\n5 6 7 8\\n'
echo 'sampled     4 tokens, the first after 3 ms, 8000 tokens/s, 50 % of the memory bandwidth' >&2
"""


def arguments(**more):
    return types.SimpleNamespace(**{"tokens": 4, "turns": 3, "precision": "bf16", **more})


class Generation(Parts):
    def test_where_texts_part(self):
        self.assertEqual(compare_generation.common([1, 2, 3], [1, 2, 3]), 3)
        self.assertEqual(compare_generation.common([1, 2, 3], [1, 9, 3]), 1)
        self.assertEqual(compare_generation.common([1, 2], [1, 2, 3]), 2)

    def test_ours(self):
        program = self.program("ours", OURS)
        self.assertEqual(compare_generation.ours(program, "m", 2, arguments()), (8000, 50, [5, 6, 7, 8]))
        self.assertEqual(self.text("words").split(), ["--model", "m", "--prompt", "--samples", "2", "--sample-tokens", "4", "--temperature",
                                                      "0", "--precision", "bf16"])

    def test_no_model(self):
        self.script_refuses("a folder with config.json", "scripts/compare_generation.py", "--model", self.path("none"), "--program", "/bin/true")

    def test_ours_fails(self):
        self.refused("ours: no model", 1, compare_generation.run, self.program("ours", "#!/bin/sh\necho no model >&2; exit 2\n"), [])
        self.refused("no tokens/s", 1, compare_generation.ours, self.program("ours", "#!/bin/sh\necho 5\n"), "m", 1, arguments())

    def test_a_row(self):
        calls = []

        class Peer:
            def generate(self, batch, tokens):
                calls.append((batch, tokens))
                return (1000, 2000, 500, 4000, 1000)[len(calls) - 1], [5, 6, 9, 8]

        report = comparison.Report(self.path("a.csv"), self.path("a.md"))
        report.table("title", ["x"] * 9)
        self.said(compare_generation.compare, self.program("ours", OURS), "m", Peer(), 2, arguments(), report)
        report.close()
        self.assertEqual(calls, [(2, 4)] * 5, "two calls to compile, one a turn")
        rows = list(csv.DictReader(self.text("a.csv").splitlines()))
        self.assertEqual([(r["program"], r["tok_s"], r["least"], r["most"], r["us_a_step"], r["same_tokens"]) for r in rows],
                         [("ours", "8000", "8000", "8000", "250.0", "2"), ("transformers", "1000", "500", "4000", "2000.0", "2")])
        self.assertIn("| 2 | 4 | 8,000 | 250.0 | 50 % | 1,000 | 2000.0 | 8.00 | 2 |", self.text("a.md"))
