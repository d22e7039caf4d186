"""scripts/scaling.py: sizes, collectives, what is left of them, tables, and the check against measured rows."""
import argparse
import csv
import math
import os
import re
import sys

from parts import ROOT, Parts

import cases
import scaling

D12 = cases.Case("d12", 64, 1024)
LINKS = scaling.Links(base_us=20.0, hop_us=2.0, bandwidth=100.0, per_host=8, network=50.0, network_hop_us=10.0)
MACHINE = scaling.Machine(LINKS, memory=1000.0, contention=0.5, spread=1.0)


class Sizes(Parts):
    def test_models(self):
        """Those of the trainer's own table."""
        with open(os.path.join(ROOT, "llmc", "model", "gpt2_config.c"), encoding="utf-8") as file:
            rows = re.findall(r'\{"(d\d+)", *(\d+), *(\d+), *(\d+) *\}', file.read())
        self.assertEqual(cases.MODELS, {name: tuple(map(int, sizes)) for name, *sizes in rows})
        self.assertEqual((cases.VOCABULARY, cases.PADDED_VOCABULARY, scaling.TILE), (50257, 50304, 1024))

    def test_flop(self):
        self.assertEqual(cases.flop("d12", 1024), (6 * 50257 * 768, 6 * (12 * 768**2 + 768 * 1024)))
        self.assertEqual(scaling.step_flop(cases.Case("d24", 3, 512)), 3 * 512 * cases.flop_of_token("d24", 512))

    def test_ranges(self):
        """Whole tiles for each tensor: 768, 2304 and 3072 elements take one, three and three."""
        found = scaling.ranges(D12)
        self.assertEqual((len(found), found[0], found[-1]), (14, 50304 * 768 // 1024 + 768, 2))
        self.assertEqual(set(found[1:-1]), {12 * 768 * 768 // 1024 + 6 * 1 + 3 + 3})
        padding = sum(found) * 1024 - (12 * (12 * 768**2 + 13 * 768) + (50304 + 1024) * 768 + 2 * 768)
        self.assertEqual(padding, (12 * 6 + 2) * 256 + 12 * 768, "256 of each vector of C, 768 of 3C, none of 4C")

    def test_parts_are_equal(self):
        for tiles, gpus, expected in ((2, 1, 2), (2, 2, 2), (2, 3, 3), (7, 3, 9), (6924, 1024, 7168)):
            self.assertEqual(scaling.elements(tiles, gpus), 1024 * expected)


class Collectives(Parts):
    def test_a_host(self):
        self.assertEqual(scaling.collective_us(LINKS, 1e9, 1), 0)
        self.assertAlmostEqual(scaling.collective_us(LINKS, 1e6, 2), 20 + 2 + 0.5e6 / 100e3)
        self.assertAlmostEqual(scaling.collective_us(LINKS, 8e6, 8), 20 + 7 * 2 + 7e6 / 100e3)

    def test_hosts(self):
        self.assertAlmostEqual(scaling.collective_us(LINKS, 16e6, 16), 20 + 14 * 2 + 1 * 10 + 15e6 / 50e3)
        fast = LINKS._replace(network=1e4)
        self.assertAlmostEqual(scaling.collective_us(fast, 16e6, 16), 20 + 14 * 2 + 1 * 10 + 15e6 / 100e3, msg="NVLink's then")

    def test_the_small_sum(self):
        for gpus, expected in ((1, 0), (2, 20 + 2 * 2), (8, 20 + 2 * 3 * 2), (1024, 20 + 2 * (3 * 2 + 7 * 10))):
            self.assertAlmostEqual(scaling.sum_us(LINKS, gpus), expected)

    def test_a_fit_finds_what_made_the_rows(self):
        rows = [(2, n, *[scaling.collective_us(LINKS, n, 2)] * 2) for n in (1e6, 3e6, 5e7)] + [(4, 1e7, scaling.collective_us(LINKS, 1e7, 4))]
        base, bandwidth = scaling.fit_links(rows, 2.0)
        self.assertAlmostEqual(base, 20)
        self.assertAlmostEqual(bandwidth, 100)
        for ranks, n, *times in scaling.LINKS:
            base, bandwidth = scaling.fit_links(scaling.LINKS, scaling.HOP_US)
            links = LINKS._replace(base_us=base, hop_us=scaling.HOP_US, bandwidth=bandwidth)
            for time in times:
                self.assertLess(abs(scaling.collective_us(links, n, ranks) / time - 1), 0.27 if n < 3e6 else 0.12)

    def test_a_file_of_links(self):
        text = "# card: a card\nranks,bytes,reduce_scatter_us,all_gather_us\n2,1000000,30,31\n2,9000000,70,71\n"
        self.assertEqual(scaling.read_links(self.file("links.csv", text)), [(2, 1e6, 30, 31), (2, 9e6, 70, 71)])
        for bad in ("ranks,bytes\n2,3\n", text.replace("9000000", "1000000"), text.replace("31", "x")):
            self.refused("expected two rows or more", 2, scaling.read_links, self.file("bad.csv", bad))

    def test_what_is_left(self):
        self.assertEqual(scaling.left_over([10, 20, 30], [5, 5, 5]), 5, "each is done before the next is ready")
        self.assertEqual(scaling.left_over([10, 20, 30], [25, 5, 5]), 15, "they queue")
        self.assertEqual(scaling.left_over([10, 20, 20], [1, 1, 7]), 8)


class Steps(Parts):
    def test_one_gpu_is_what_was_measured(self):
        step = scaling.predict(MACHINE, D12, 100.0, 1)
        self.assertAlmostEqual(scaling.total_ms(step), 100.0)
        self.assertEqual(scaling.limit_of(step), "-")

    def test_two_gpus(self):
        step, tiles = scaling.predict(MACHINE, D12, 100.0, 2), scaling.ranges(D12)
        adamw = 1e-6 * sum(tiles) * 1024 * 34 / 1000
        even = 1e-6 * (sum(tiles) + sum(n % 2 for n in tiles)) / 2 * 1024 * 34 / 1000
        self.assertAlmostEqual(step.compute, 100 - adamw + even)
        cost = [1e-3 * scaling.collective_us(LINKS, 4 * scaling.elements(n, 2), 2) for n in tiles]
        self.assertAlmostEqual(step.gradients, cost[0] + cost[1] + even * 12 / 34, msg="the embeddings and the first block are final when backward ends, and two terms are added")
        self.assertEqual(step.beside, 0, "copies take no SM")
        by_nccl = scaling.predict(MACHINE._replace(links=LINKS._replace(per_host=1, network=LINKS.bandwidth, network_hop_us=LINKS.hop_us)), D12, 100.0, 2)
        self.assertAlmostEqual(by_nccl.gradients, cost[0] + cost[1])
        self.assertAlmostEqual(by_nccl.beside, 0.5 * sum(cost[2:]))
        self.assertAlmostEqual(step.sum, 0.024)
        self.assertAlmostEqual(step.slowest, 0.01 * step.compute * 0.589, places=2)
        self.assertAlmostEqual(scaling.total_ms(step), step.compute + step.beside + step.gradients + step.sum + step.weights + step.slowest)

    def test_backward_that_is_too_short_leaves_all(self):
        machine = MACHINE._replace(links=LINKS._replace(per_host=1, network=LINKS.bandwidth, network_hop_us=LINKS.hop_us))
        long, short = scaling.predict(machine, D12, 100.0, 2), scaling.predict(machine, D12, scaling.adamw_ms(MACHINE, D12, 1) + 0.03, 2)
        cost = sum(1e-3 * scaling.collective_us(LINKS, 4 * scaling.elements(n, 2), 2) for n in scaling.ranges(D12))
        self.assertLess(abs(short.gradients - cost), 0.02)
        self.assertAlmostEqual(short.gradients + short.beside / 0.5, long.gradients + long.beside / 0.5)
        self.refused("which AdamW alone takes", 2, scaling.predict, MACHINE, D12, scaling.adamw_ms(MACHINE, D12, 1), 2)

    def test_weights_behind_adamw(self):
        fast = MACHINE._replace(memory=1e9)
        cost = sum(1e-3 * scaling.collective_us(LINKS, 2 * scaling.elements(n, 2), 2) for n in scaling.ranges(D12))
        self.assertAlmostEqual(scaling.predict(fast, D12, 100.0, 2).weights, cost, places=4)
        slow = MACHINE._replace(memory=1.0)
        last = [scaling.collective_us(LINKS, 2 * scaling.elements(n, 2), 2) for n in scaling.ranges(D12)[-2:]]
        self.assertAlmostEqual(scaling.weights_us(slow, D12, 2), sum(last) - 1e-3 * 1024 * 34, msg="the last block's and norm's")

    def test_more_micro_steps_hide_more(self):
        alone, four = (scaling.predict(MACHINE, D12, 100.0, 8, n) for n in (1, 4))
        self.assertEqual([getattr(alone, term) for term in scaling.TERMS[:4]], [getattr(four, term) for term in scaling.TERMS[:4]])
        self.assertAlmostEqual(four.compute - alone.compute, 3 * (100 - scaling.adamw_ms(MACHINE, D12, 1)))

    def test_the_limit(self):
        step = scaling.Step(8, 100, 1, 2, 3, 4, 5, ("gradients",))
        self.assertEqual(scaling.limit_of(step), "slowest")
        self.assertEqual(scaling.limit_of(step._replace(weights=6)), "weights, bandwidth")
        self.assertEqual(scaling.limit_of(step._replace(gradients=6)), "gradients, latency")
        self.assertEqual(scaling.latency_bound(LINKS, D12, 2), ())
        self.assertEqual(scaling.latency_bound(LINKS, D12, 1024), ("gradients", "weights"))
        self.assertEqual(scaling.latency_bound(LINKS._replace(base_us=150), D12, 2), ("weights",))


class Measured(Parts):
    CSV = ("# card: a card, x\n# commit: 0123abc\nconfiguration,program,flags,ms\nd12:4x1024,train_gpt2cu,,10\nd12:4x1024,train_gpt2cu,,12\n"
           "d12:4x1024,train_gpt2cu,,11\nd12:64x1024,torch,,90\nd12:64x1024,train_gpt2cu,,71\nd24:8x512,train_gpt2cu,--recompute gelu,5\n"
           "d24:32x1024,train_gpt2cu,,\n")

    def test_one_gpu(self):
        measured = scaling.read_measured(self.file("x.csv", self.CSV))
        self.assertEqual(measured, {cases.Case("d12", 4, 1024): 11.0, D12: 71.0}, "medians of ours without flags")
        self.assertEqual(scaling.one_gpu(D12, measured), (71.0, "measured"))
        ms, source = scaling.one_gpu(cases.Case("d12", 16, 1024), measured)
        self.assertAlmostEqual(ms, 11 + 12)
        self.assertEqual(source, "on the line through d12:4x1024 and d12:64x1024")
        ms, source = scaling.one_gpu(cases.Case("d24", 64, 1024), measured)
        self.assertAlmostEqual(ms, 71 * cases.flop_of_token("d24", 1024) / cases.flop_of_token("d12", 1024))
        self.assertEqual(source, "by FLOP, as d12:64x1024")
        self.refused("no measured step of one GPU; hint: --ms", 2, scaling.one_gpu, D12, {})

    def run_main(self, *words):
        self.replace(sys, "argv", ["scaling.py", *words])
        return self.said(scaling.main)

    def refused_main(self, pattern, *words):
        self.replace(sys, "argv", ["scaling.py", *words])
        self.refused(pattern, 2, scaling.main)

    def test_tables(self):
        path = self.file("x.csv", self.CSV)
        status, out, err, code = self.run_main("--measured", path, "--cases", "d12:64x1024", "--gpus", "1,2,16", "--csv", self.path("y.csv"))
        self.assertEqual((status, err, code), (0, "", None))
        self.assertIn("commit   0123abc\n", out)
        rows = list(csv.DictReader(line for line in self.text("y.csv").splitlines() if not line.startswith("#")))
        self.assertEqual([(row["gpus"], row["limit"]) for row in rows][0], ("1", "-"))
        self.assertEqual((rows[0]["ms"], rows[0]["percent"], rows[0]["tok_s"]), ("71.000", "100.00", f"{65536e3 / 71:.0f}"))
        percent = [float(row["percent"]) for row in rows]
        self.assertTrue(80 < percent[2] < percent[1] < 100, percent)
        self.assertAlmostEqual(float(rows[1]["percent"]), 100 * 71 / float(rows[1]["ms"]), places=2)
        terms = sum(float(rows[1][f"{name}_ms"]) for name in ("compute",) + scaling.TERMS)
        self.assertAlmostEqual(terms, float(rows[1]["ms"]), delta=0.005)

    def test_a_global_batch(self):
        words = ["--ms", "100", "--cases", "d12:64x1024", "--tokens-per-step", "262144", "--csv", self.path("y.csv")]
        status, out, _, _ = self.run_main(*words, "--gpus", "1:8")
        rows = list(csv.DictReader(line for line in self.text("y.csv").splitlines() if not line.startswith("#")))
        self.assertEqual([(row["gpus"], row["micro_steps"]) for row in rows], [("1", "4"), ("2", "2"), ("4", "1")])
        self.assertEqual(rows[0]["percent"], "100.00")
        self.assertRegex(out, "\n +8 .* no whole micro-step\n")
        self.assertTrue(all(float(a["percent"]) > float(b["percent"]) for a, b in zip(rows, rows[1:])))

    def check_file(self, two):
        return self.file("s.csv", "# commit: 0123abc\nconfiguration,program,gpus,ms\nd12:64x1024,train_gpt2cu,1,100\nd12:64x1024,torch,2,1\n"
                         f"d12:64x1024,train_gpt2cu,2,{two}\nd12:64x1024,train_gpt2cu,2,{two}\nd24:32x1024,train_gpt2cu,1,9\n")

    def test_the_check(self):
        arguments = scaling.parse_arguments([])
        predicted = scaling.total_ms(scaling.predict(scaling.machine_of(arguments), D12, 100.0, 2))
        measured = self.file("x.csv", self.CSV)
        for factor, status in ((1.0, 0), (1.015, 0), (1.03, 1), (0.97, 1)):
            path = self.check_file(predicted * factor)
            found, out, err, _ = self.run_main("--check", path, "--measured", measured)
            self.assertEqual((found, err), (status, ""), out)
            self.assertIn(f"The largest error on more than one GPU is {abs(100 * (1 / factor - 1)):.2f} %", out)
        self.assertEqual(self.run_main("--check", path, "--measured", measured, "--most", "4")[0], 0)
        four = scaling.total_ms(scaling.predict(scaling.machine_of(arguments), D12, 100.0, 2, 4))
        eight = scaling.total_ms(scaling.predict(scaling.machine_of(arguments), D12, 100.0, 1, 8))
        path = self.file("t.csv", f"# commit: 0123abc\nconfiguration,program,gpus,ms\nd12:64x1024/524288,train_gpt2cu,1,{eight}\n"
                         f"d12:64x1024/524288,train_gpt2cu,2,{four}\n")
        found, out, err, _ = self.run_main("--check", path, "--measured", measured)
        self.assertEqual((found, err), (0, ""), out)
        self.assertRegex(out, rf"d12:64x1024/524288 +2 +{four:.3f} +{four:.3f} +[+-]0.00 +{100 * eight / 2 / four:.2f} +{100 * eight / 2 / four:.2f} ")
        alone = self.CSV.replace("flags", "gpus").replace(",,", ",1,").replace("--recompute gelu", "1")
        self.refused_main("expected rows of ours on 1 GPU and on more", "--check", self.file("x.csv", alone))
        self.refused_main("expected the columns configuration, program, gpus, ms", "--check", self.file("x.csv", self.CSV))

    def test_bad_words(self):
        for text in ("d12", "d13:1x1", "d12:0x1024", "d12:1x1,", "d12:1xa"):
            self.refused("expected MODEL:BxT", 2, scaling.parse_arguments, ["--cases", text])
        for text in ("nan", "-1", "x", "11"):
            with self.assertRaises(argparse.ArgumentTypeError, msg=text):
                scaling.number(0, 10)(text)
        self.refused_main("--gpus", "--gpus", "0")
        self.refused_main("/none.csv: cannot be read", "--measured", self.path("none.csv"))

    def test_the_slowest_of_many(self):
        waits = [scaling.waiting_ms(MACHINE, 100.0, gpus) for gpus in (1, 2, 8, 1024)]
        self.assertEqual(waits[0], 0)
        self.assertTrue(all(a < b for a, b in zip(waits, waits[1:])))
        self.assertTrue(math.isclose(waits[2], 1.42, rel_tol=0.02), "the largest of 8 normal values is 1.42 deviations")
        self.assertTrue(math.isclose(scaling.waiting_ms(MACHINE, 400.0, 8, 4), 2 * waits[2]), "a sum of 4 varies twice as much as one")
