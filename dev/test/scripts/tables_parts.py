"""dev/tables.py with a lab that stands in for the real one: what a command that fails leaves of a table."""
import os
import sys

from parts import ROOT, Parts

sys.path.append(os.path.join(ROOT, "dev"))
import table_output
import table_sources
import tables

# Writes one row, unless the op is the backward one, which fails before it writes.
LAB = """#!/bin/sh
if [ "$1" = --list ]; then printf 'attention_forward\\n  cpu\\nattention_backward\\n  cpu\\n' && exit; fi
op=$1
while [ $# -gt 1 ]; do [ "$1" = --csv ] && csv=$2; shift; done
[ "$op" != attention_backward ] || { echo 'error: no'; exit 2; }
printf '# commit abc\\n# cpu A card, 1 core\\n# date today\\nkind,op,variant,T,tflops\\ntime,%s,cpu,64,1.5\\n' "$op" >"$csv"
"""


class Tables(Parts):
    def setUp(self):
        super().setUp()
        self.replace(table_sources, "LAB", self.program("lab", LAB))
        self.replace(tables, "RESULTS", self.path("results"))
        self.page = self.path("results", "a-card", "mine.md")
        self.replace(table_output, "draw", lambda *_: None)
        self.run_of = table_sources.Run(False)
        self.addCleanup(self.run_of.folder.cleanup)

    def table(self, *ops):
        section = table_output.Section("all", {"TFLOP/s": "tflops"}, x="T")
        return table_output.Table(1, "mine", "a table", "nothing", [table_sources.lab(op, "cpu", "64") for op in ops], [section])

    def test_a_command_that_fails(self):
        _, out, _, _ = self.said(tables.make, self.table("attention_forward"), self.run_of)
        self.assertIn("mine.md: 1 rows", out)
        before = self.text("results", "a-card", "mine.csv")
        _, out, _, _ = self.said(tables.make, self.table("attention_forward", "attention_backward"), self.run_of)
        self.assertIn("exit code 2: error: no", out)
        self.assertIn("skip mine: a command of it failed; its files stay as they are", out)
        self.assertEqual((self.run_of.failed, self.text("results", "a-card", "mine.csv")), (1, before))

    def test_it_has_no_rows_of_the_command_before(self):
        forward, backward = self.table("attention_forward", "attention_backward").sources
        self.assertEqual(len(forward(self.run_of)[0]), 1)
        self.assertEqual(self.said(backward, self.run_of)[0], ([], []))

    def test_a_csv_of_another_table(self):
        self.file("results/a-card/mine.csv", "# commit abc\nvariant,T,tflops\ncpu,64,\n")
        with self.assertRaises(table_output.DamagedCsv) as caught:
            table_output.write_page(self.table(), self.path("results", "a-card"))
        self.assertIn("mine.csv: none of its 1 rows belongs to table 1", str(caught.exception))
