"""scripts/compare_attention.py and attention_kernels.py, as far as they compute without PyTorch and a card; a stand-in for each."""
import ctypes
import math
import statistics
import types

from parts import Parts

import attention_kernels
import compare_attention as compare

CASE = compare.Case(2, 1024, 3, 64, True)
NAN = float("nan")


class Named:
    """A kernel by its name."""

    def __init__(self, name):
        self.name = name


class Work(Parts):
    def test_flop(self):
        self.assertAlmostEqual(compare.tflop(CASE._replace(causal=False), "forward"), 4 * 2 * 3 * 1024**2 * 64 * 1e-12, 15)
        self.assertAlmostEqual(compare.tflop(CASE, "forward"), 2 * 2 * 3 * 1024**2 * 64 * 1e-12, 15)
        self.assertAlmostEqual(compare.tflop(CASE, "backward"), 5 * 2 * 3 * 1024**2 * 64 * 1e-12, 15)
        self.assertAlmostEqual(compare.tflop(CASE._replace(window=256), "forward"), 4 * 2 * 3 * 1024 * 224 * 64 * 1e-12, 15)

    def test_documents(self):
        case = CASE._replace(documents=8)
        ends = attention_kernels.document_ends(case)
        lengths = [b - a for a, b in zip([0] + ends, ends)]
        self.assertTrue({1024, 2048} <= set(ends) and ends[-1] == 2048 and min(lengths) > 0 and 8 < len(ends) < 32)
        self.assertEqual(ends, attention_kernels.document_ends(case))
        pairs = sum(n * n for n in lengths) / 2
        self.assertAlmostEqual(compare.tflop(case, "forward"), 4 * 3 * 64 * pairs * 1e-12, 15)
        self.assertEqual(compare.mask_name(case), "documents T / 8")

    def test_dropout(self):
        case = CASE._replace(dropout=0.1)
        self.assertEqual((compare.mask_name(case), compare.mask_name(CASE)), ("dropout 0.1", "causal"))
        self.assertEqual(compare.tflop(case, "backward"), compare.tflop(CASE, "backward"), "what is dropped counts")

    def test_the_aims(self):
        self.assertEqual((compare.FAR_BEHIND, compare.SETTLE), (1.15, 1.5))
        self.assertEqual([compare.must_attention(mask) for mask in ("causal", "full", "window 256", "dropout 0.1")], [1.05, 1.05, 1.05, 1.8])


class Errors(Parts):
    def test_heads(self):
        self.assertEqual(compare.sample_heads(compare.Case(4, 1, 6, 64, True)), [(0, 0), (2, 3), (3, 5)])
        self.assertEqual(compare.sample_heads(compare.Case(1, 1, 1, 64, True)), [(0, 0)])

    def test_worst(self):
        self.assertEqual(compare.worst([1, 3, 2]), 3)
        self.assertTrue(math.isnan(compare.worst([1, NAN, 2])))
        self.assertTrue(math.isnan(compare.worst(iter([NAN, 5]))))

    def test_sizes(self):
        self.replace(compare, "rms", abs)
        references = {(0, 0): ({name: 0.5 for name in compare.TENSORS}, None), (0, 1): ({name: 2.0 for name in compare.TENSORS}, None)}
        references[0, 0][0]["dq"] = references[0, 1][0]["dq"] = 0.0
        self.assertEqual(compare.sizes(references), {"out": 2.0, "dq": 1.0, "dk": 2.0, "dv": 2.0, "lse": 2.0})

    def test_twice_the_peers_error(self):
        peer = {name: (1e-3, 1e-2, 1e-6) for name in compare.TENSORS}
        apart = {"out": 2.9e-3}
        for name in compare.TENSORS:
            self.assertEqual(compare.judge([{**peer, name: (2e-3, 2e-2, 1e-6)}, peer], apart, True)[0], [], "twice is allowed")
            failed, best = compare.judge([{**peer, name: (2.01e-3, 1e-2, 1e-6)}, peer], apart, True)
            self.assertEqual((len(failed), best[name]), (1, (1e-3, 1e-2)))
            self.assertRegex(failed[0], f"^{name}: rms error 2.01e-03, at most 2 x 1.00e-03")
        self.assertEqual(len(compare.judge([peer, peer], {"out": 3.1e-3}, True)[0]), 1, "apart: twice ours, once the peer's")
        self.assertEqual(compare.judge([peer, peer], {"out": 2.9e-3}, True)[0], [])
        self.assertEqual(compare.judge([peer, {"lse": peer["lse"]}], {}, True)[1], {"lse": (1e-3, 1e-2)}, "what no peer has is not held")

    def test_where_no_peer_has_a_tensor_ours_is_held_to_rounding(self):
        own = {"out": (1e-3, 1e-2, 1e-6), "lse": (1e-6, 1e-5, 1e-5)}
        self.assertEqual(compare.judge([own, {"lse": (1e-6, 1e-5, 1e-5)}], {}, True)[0], [])
        self.assertEqual(compare.judge([own], {}, True), ([], {}), "no peer at all")
        for far in (1.1e-6, NAN):
            failed, best = compare.judge([{**own, "out": (1e-3, 1e-2, far)}, {}], {}, True)
            self.assertRegex("; ".join(failed), f"^out: largest error 1.00e-02, {far:.2e} more than rounding explains$")
            self.assertEqual(best, {})

    def test_each_fault_is_one_failure(self):
        peer = {"out": (1e-3, 1e-2, 1e-6), "dq": (2e-3, 2e-2, 1e-6)}
        apart = {"out": 2e-3, "dq": 4e-3}
        for fault in ({"out": (2.1e-3, 1e-2, 1e-6)}, {"out": (1e-3, 2.1e-2, 1e-3)}, {"dq": (NAN, 2e-2, 1e-6)}, {"dq": (2e-3, NAN, NAN)}):
            self.assertEqual(len(compare.judge([{**peer, **fault}, peer], apart, True)[0]), 1, fault)
        self.assertEqual(compare.judge([{**peer, "out": (1e-3, 2.1e-2, 1e-6)}, peer], apart, True)[0], [], "the largest error: rounding explains it")
        for far in (NAN, 7e-3):
            self.assertEqual(len(compare.judge([peer, peer], {**apart, "dq": far}, True)[0]), 1)
        self.assertEqual(len(compare.judge([peer, peer], apart, False)[0]), 1, "other bits")
        better = {name: (rms / 4, *others) for name, (rms, *others) in peer.items()}
        self.assertEqual(len(compare.judge([peer, peer, better], apart, True)[0]), 4, "the best peer counts")


class Event:
    """A CUDA event of a card whose launches take as long as each kernel says."""

    now = 0.0

    def __init__(self, enable_timing):
        self.at = None

    def record(self):
        self.at = Event.now

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return other.at - self.at


class Kernel(Named):
    """Takes ms for each launch; notes which states it was given."""

    def __init__(self, name, ms):
        super().__init__(name)
        self.ms, self.given = ms, []

    def forward(self, state):
        Event.now += self.ms
        self.given.append(state)

    backward = forward


class Timing(Parts):
    def setUp(self):
        super().setUp()
        Event.now = 0.0
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(Event=Event))
        self.watch = compare.Stopwatch(torch, 0.5, 3)
        self.replace(compare.time, "monotonic", lambda: 1e-3 * Event.now)

    def test_groups(self):
        kernel = Kernel("a", 4.0)
        self.assertEqual(self.watch._events(kernel.forward, [1, 2, 3], 2, 5), [4.0, 4.0])
        self.assertEqual(kernel.given, [1, 2, 3, 1, 2, 3, 1, 2, 3, 1], "buffers take turns")

    def test_a_slice(self):
        kernel = Kernel("a", 0.5)
        found = self.watch.slice(kernel.forward, [1], 0.5, 0.1)
        self.assertEqual(found, [0.5] * 50, "0.1 s in groups of four launches, 2 ms each")
        self.assertEqual(len(kernel.given), (50 + 75) * 4, "after 1.5 x as many others")
        kernel.ms = 70.0
        self.assertEqual(len(self.watch.slice(kernel.forward, [1], 70.0, 0.1)), 2)

    def test_load(self):
        kernel = Kernel("a", 2.0)
        self.assertEqual(self.watch.load(kernel.forward, [1], 0.2), 2.0)
        self.assertEqual(len(kernel.given), 3 + 4 * 25)

    def test_before_the_first_row_all_kernels_are_run(self):
        first, second = Kernel("a", 5.0), Kernel("b", 5.0)
        self.watch.warm_up({first: [1], second: [1]})
        self.assertGreater(1e-3 * Event.now, compare.COLD_S + compare.WARM_UP_S)
        self.assertGreater(len(second.given), 100)
        count, second.given = len(second.given), []
        self.watch.warm_up({first: [1], second: [1]})
        self.assertEqual(second.given, [], "then the first alone")

    def test_a_cell(self):
        ours, near, far = Kernel("ours", 1.0), Kernel("near", 1.125), Kernel("far", 2.0)
        order = []
        taken = self.watch.slice
        self.replace(self.watch, "slice", lambda launch, states, ms, seconds: order.append(launch.__self__.name) or taken(
            launch, states, ms, seconds))
        times = self.watch.cell("forward", {ours: [1], near: [1], far: [1]})
        self.assertEqual(order, ["ours", "near", "far"] + ["ours", "near", "near", "ours", "ours", "near"])
        self.assertEqual({kernel.name: statistics.median(ms) for kernel, (ms, _) in times.items()}, {"ours": 1.0, "near": 1.125, "far": 2.0})
        self.assertEqual([(len(times[kernel][0]), times[kernel][1]) for kernel in (ours, near, far)], [(3 * 250, 3), (3 * 222, 3), (25, 0)])

    def test_ours_without_dropout_is_no_rival(self):
        ours, plain, peer, far = Kernel("ours", 1.0), Kernel("plain", 0.5), Kernel("peer", 2.0), Kernel("far", 3.0)
        times = self.watch.cell("backward", {ours: [1], plain: [1], peer: [1], far: [1]})
        self.assertEqual({kernel.name: slices for kernel, (_, slices) in times.items()}, {"ours": 3, "plain": 3, "peer": 3, "far": 0})


class Tables(Parts):
    def report(self):
        noted, recorded = [], []
        report = types.SimpleNamespace(note=noted.append, record=lambda **values: recorded.append(values), noted=noted, recorded=recorded)
        return report

    def test_columns(self):
        ours, cudnn, fa3 = Named("ours"), Named("cuDNN"), Named("FA3")
        arguments = types.SimpleNamespace(check=False, direction=["forward", "backward"])
        self.assertEqual([text.strip() for text in compare.headings(arguments, [ours, cudnn, fa3])],
                         ["T", "error", "bits", "check", "forward", "cuDNN", "FA3", "ratio", "must", "backward", "cuDNN", "FA3",
                          "ratio", "must"])
        arguments.check = True
        self.assertEqual([text.strip() for text in compare.headings(arguments, [ours])], ["T", *compare.TENSORS, "bits", "check"])

    def test_a_cell(self):
        work, report = compare.tflop(CASE, "forward"), self.report()
        times = {Named(name): ([1e3 * work / speed * k for k in (0.9, 1, 1.2)], 3)
                 for name, speed in (("ours", 630), ("cuDNN", 400), ("FA2", 300), ("packed", 900))}
        names, checked = ["cuDNN", "FA2", "packed", "FA3"], ["1.20", "equal", "ok"]
        cells, ratio = compare.compare_cell(CASE, "forward", times, names, checked, report)
        self.assertAlmostEqual(ratio, 630 / 400)
        self.assertEqual(cells, ["630", "400", "300", "900", "-", "1.575", "yes"])
        self.assertEqual(report.recorded[1], {
            "head_size": 64, "mask": "causal", "T": 1024, "B": 2, "heads": 3, "direction": "forward", "kernel": "cuDNN",
            "ms": f"{1e3 * work / 400:.4f}", "ms_fastest": f"{900 * work / 400:.4f}", "ms_slowest": f"{1200 * work / 400:.4f}",
            "tflops": "400.0", "slices": 3, "error": "1.20", "bits": "equal", "check": "ok"})
        times[next(kernel for kernel in times if kernel.name == "FA2")] = [1e3 * work / 610], 0
        self.assertEqual(compare.compare_cell(CASE, "forward", times, ["cuDNN", "FA2"], checked, report)[0][-2:], ["1.033", "no"])

    def test_a_cell_with_dropout(self):
        """1.8 times the best peer; ours without dropout is none."""
        case, report = CASE._replace(dropout=0.1), self.report()
        for ours, must in ((182, "yes"), (178, "no")):
            times = {Named(name): ([1e3 * compare.tflop(case, "forward") / speed], 3)
                     for name, speed in (("ours", ours), ("plain", 200), ("cuDNN", 100))}
            cells, _ = compare.compare_cell(case, "forward", times, ["plain", "cuDNN"], ["-", "equal", "ok"], report)
            self.assertEqual(cells, [str(ours), "200", "100", f"{ours / 100:.3f}", must])
        self.assertEqual([(row["mask"], row["kernel"], row["error"]) for row in report.recorded[:3]],
                         [("dropout 0.1", name, "-") for name in ("ours", "plain", "cuDNN")])
        only = {kernel: value for kernel, value in times.items() if kernel.name != "cuDNN"}
        self.assertEqual(compare.compare_cell(case, "forward", only, ["plain", "cuDNN"], ["-"] * 3, report), (["178", "200", "-", "-", "-"], None))

    def test_the_sum(self):
        report, kernels = self.report(), [Named("ours"), Named("FA3")]
        ratios = {(64, "causal", 1024, "forward"): 1.06, (64, "full", 2048, "backward"): 1.04}
        self.assertEqual(compare.summarize(report, kernels, [], ratios), 0)
        self.assertIn("must (1.05 x the best peer): 1 of 2 cells; not: backward 64 full T=2048 1.040", report.noted)
        self.assertFalse(any("FA3 has no dropout" in line for line in report.noted))
        ratios = {(64, "dropout 0.1", 1024, "forward"): 1.9, (64, "dropout 0.1", 2048, "backward"): 1.7}
        self.assertEqual(compare.summarize(report, [Named("ours"), Named("plain")], [], ratios), 0)
        self.assertIn("must (1.8 x the best peer): 1 of 2 cells; not: backward 64 dropout 0.1 T=2048 1.700", report.noted)
        self.assertTrue(any("FA3 has no dropout" in line for line in report.noted))
        self.assertEqual(compare.summarize(report, kernels, ["out: far"], {}), 1)
        self.assertEqual(report.noted[-1], "FAIL out: far")

    def test_flags(self):
        found = compare.parse_arguments([])
        self.assertEqual((found.head_size, found.seq, found.mask, found.direction), (
            [64, 128], [1024, 2048, 4096, 8192, 16384, 32768], [True, False], ["forward", "backward"]))
        self.assertEqual((found.batch_tokens, found.channels, found.repeat, found.slice), (65536, 1536, 3, 0.25))
        self.assertEqual((found.rounds, found.check, found.no_check, found.device), (3, False, False, None))
        self.refused("--check and --no-check", 2, compare.parse_arguments, ["--check", "--no-check"])
        found = compare.parse_arguments(["--quick"])
        self.assertEqual((found.seq, found.mask), ([1024, 4096, 16384], [True]))
        found = compare.parse_arguments(["--quick", "--seq", "64", "--mask", "full", "--direction", "backward"])
        self.assertEqual((found.seq, found.mask, found.direction), ([64], [False], ["backward"]))
        self.refused("--channels: expected a multiple of the head size 128, found 1600", 2, compare.parse_arguments,
                     ["--channels", "1600"])

    def test_one_mask(self):
        """A window, documents or dropout, and causal."""
        for flag, value in (("--window", "256"), ("--documents", "8"), ("--dropout", "0.1")):
            found = compare.parse_arguments([flag, value])
            self.assertEqual((found.mask, found.window, found.documents, found.dropout), (
                [True], *(float(value) if flag == name else 0 for name in ("--window", "--documents", "--dropout"))))
            self.refused(f"{flag} is causal: expected --mask causal, found full", 2, compare.parse_arguments, [flag, value, "--mask", "full"])
        self.refused("--window and --dropout: expected one of them", 2, compare.parse_arguments, ["--dropout", "0.1", "--window", "8"])
        for p in ("0", "1", "-0.1", "nan"):
            self.refused("--dropout", 2, compare.parse_arguments, ["--dropout=" + p])

    def test_cases(self):
        cases = []

        def compare_case(torch, arguments, kernels, case, report, stopwatch):
            cases.append(case)
            return (["bad"], {"forward": 1.1}) if case.T == 1 << 17 else ([], {"forward": None})

        self.replace(compare, "compare_case", compare_case)
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(empty_cache=lambda: None))
        report = types.SimpleNamespace(table=lambda *_: None)
        arguments = compare.parse_arguments(["--head-size", "64,128", "--seq", "1024,131072", "--mask", "both", "--direction", "forward"])
        failed, ratios = compare.compare_tables(torch, arguments, [Named("ours")], report)
        self.assertEqual(cases[:5], [(64, 1024, 24, 64, True, 0, 0, 0), (1, 131072, 24, 64, True, 0, 0, 0), (64, 1024, 24, 64, False, 0, 0, 0),
                                     (1, 131072, 24, 64, False, 0, 0, 0), (64, 1024, 12, 128, True, 0, 0, 0)])
        self.assertEqual(failed[0], "head size 64, causal, T = 131072: bad")
        self.assertEqual(len(ratios), 4)
        cases.clear()
        compare.compare_tables(torch, compare.parse_arguments(["--head-size", "64", "--seq", "1024", "--dropout", "0.1"]), [Named("ours")], report)
        self.assertEqual(cases, [(64, 1024, 24, 64, True, 0, 0, 0.1)])

    def test_an_operator_that_is_missing_is_said(self):
        class Missing(Named):
            def prepare(self, case, inputs):
                raise AttributeError("'_OpNamespace' 'aten' object has no attribute '_some_attention'")

        report = self.report()
        ours = Kernel("ours", 1.0)
        ours.prepare = lambda case, inputs: inputs
        self.assertEqual(compare.prepare([ours, Missing("FA2")], CASE, [1], report), {ours: [1]})
        self.assertEqual(report.noted, ["FA2, T = 1024: '_OpNamespace' 'aten' object has no attribute '_some_attention'"])


class Buffer:
    """A tensor of which only its shape and place matter."""

    def __init__(self, *shape, value=None):
        self.shape, self.value, self.device = shape, value, "card"

    def data_ptr(self):
        return id(self)

    def fill_(self, value):
        self.value = value

    def permute(self, *order):
        return [("part", i, order) for i in range(3)]

    def transpose(self, *axes):
        return ("transposed", axes)


class Library(Parts):
    """attention_kernels.Ours with a stand-in for build/libattention.so."""

    def setUp(self):
        super().setUp()
        self.calls = []

        class Function:
            def __init__(self, name, calls, result=0):
                self.name, self.calls, self.result = name, calls, result

            def __call__(self, *arguments):
                self.calls.append((self.name, arguments))
                return self.result

        functions = {name: Function(name, self.calls, result) for name, result in (
            ("attention_open", 0), ("attention_serves", 1), ("attention_scratch", 4096), ("attention_forward", 0),
            ("attention_backward", 0))}
        self.functions = types.SimpleNamespace(**functions)
        self.replace(ctypes, "CDLL", lambda path: self.functions)
        self.torch = types.SimpleNamespace(
            cuda=types.SimpleNamespace(current_stream=lambda: types.SimpleNamespace(cuda_stream=77)), uint8="uint8",
            int64="int64", tensor=lambda values, dtype, device: Buffer(len(values), value=values),
            empty=lambda *shape, dtype=None, device: Buffer(*shape), empty_like=lambda other: Buffer(*other.shape))
        self.ours = attention_kernels.Ours(self.torch, "x.so")
        self.inputs = types.SimpleNamespace(qkv=Buffer(2, 1024, 3, 5, 64), dout=Buffer(2, 1024, 5, 64))
        self.state = self.ours.prepare(compare.Case(2, 1024, 5, 64, True), self.inputs)

    def test_sizes(self):
        self.assertEqual(self.calls, [("attention_open", (77,)), ("attention_serves", (64, True)), ("attention_scratch", (2, 1024, 5, 64))])
        s = self.state
        self.assertEqual((s.out.shape, s.dqkv.shape, s.lse.shape, s.scratch.shape, s.shape),
                         ((2, 1024, 5, 64), (2, 1024, 3, 5, 64), (2, 5, 1024), (4096,), (2, 1024, 5, 64, 1, 0)))
        self.functions.attention_serves.result = 0
        with self.assertRaises(RuntimeError):
            self.ours.prepare(CASE, self.inputs)

    def test_calls(self):
        s, self.calls[:] = self.state, []
        self.ours.forward(s)
        self.ours.backward(s)
        at = lambda *names: tuple(id(getattr(s, name)) for name in names)
        self.assertEqual(self.calls, [("attention_forward", at("out", "lse", "qkv") + s.shape + (None, None, 0.0, None)),
                                      ("attention_backward", at("dqkv", "dout", "out", "qkv", "lse", "scratch") + s.shape + (None, None, 0.0, None))])

    def test_dropout(self):
        case = compare.Case(2, 1024, 5, 64, True, dropout=0.1)
        s, self.calls[:] = self.ours.prepare(case, self.inputs), []
        self.assertEqual(s.key.value, [attention_kernels.DROPOUT_KEY])
        self.ours.forward(s)
        self.ours.backward(s)
        self.assertEqual([arguments[-4:] for _, arguments in self.calls], [(None, None, 0.1, id(s.key))] * 2)
        plain = attention_kernels.Plain(self.torch, "x.so")
        self.assertEqual((plain.name, plain.prepare(case, self.inputs).mask), ("plain", [None, None, 0.0, None]))

    def test_poison_and_results(self):
        self.ours.poison(self.state)
        for tensor in (self.state.out, self.state.dqkv, self.state.lse):
            self.assertTrue(math.isnan(tensor.value))
        self.assertEqual(self.state.scratch.value, 255)
        self.assertEqual(self.ours.written(self.state), (self.state.out, self.state.dqkv, self.state.lse))
        order = (2, 0, 3, 1, 4)
        self.assertEqual(self.ours.results(self.state), {
            "out": ("transposed", (1, 2)), "lse": self.state.lse, "dq": ("part", 0, order), "dk": ("part", 1, order),
            "dv": ("part", 2, order)})

    def test_a_library_that_is_not_there(self):
        def missing(path):
            raise OSError(f"{path}: no such file")

        ctypes.CDLL = missing
        self.refused("x.so: cannot be loaded: .*hint: make build/libattention.so", 2, attention_kernels.Ours, self.torch, "x.so")


class Operators(Parts):
    """The peers' operators with a stand-in for PyTorch's."""

    def test_arguments(self):
        called = []

        def operator(name):
            return lambda *arguments: called.append((name, arguments)) or tuple(f"{name}{i}" for i in range(9))

        aten = types.SimpleNamespace(**{name: operator(name) for name in (
            "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
            "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward")})
        cudnn, flash = attention_kernels.operators(types.SimpleNamespace(ops=types.SimpleNamespace(aten=aten)))
        s = types.SimpleNamespace(q="q", k="k", v="v", dout="dout", causal="causal", dropout="p")
        for kernel in (cudnn, flash):
            kernel.forward(s)
            kernel.backward(s)
        c, f = ([f"_scaled_dot_product_{name}_attention{i}" for i in range(9)] for name in ("cudnn", "flash"))
        self.assertEqual([arguments for _, arguments in called], [
            ("q", "k", "v", None, True, "p", "causal", False),
            ("dout", "q", "k", "v", c[0], c[1], c[6], c[7], None, c[2], c[3], c[4], c[5], "p", "causal"),
            ("q", "k", "v", "p", "causal", False),
            ("dout", "q", "k", "v", f[0], f[1], f[2], f[3], f[4], f[5], "p", "causal", f[6], f[7])])
        self.assertEqual((cudnn.name, flash.name), ("cuDNN", "FA2"))

    def test_prepare(self):
        kernel = attention_kernels.Operator("x", None, None)
        found = kernel.prepare(CASE, types.SimpleNamespace(qkv=Buffer(1), dout=Buffer(2)))
        order = (2, 0, 3, 1, 4)
        self.assertEqual((found.q, found.k, found.v, found.dout, found.causal, found.dropout),
                         (("part", 0, order), ("part", 1, order), ("part", 2, order), ("transposed", (1, 2)), True, 0.0))
        found = kernel.prepare(CASE._replace(dropout=0.1), types.SimpleNamespace(qkv=Buffer(1), dout=Buffer(2)))
        self.assertEqual(found.dropout, 0.1)

    def test_who_has_dropout(self):
        self.replace(attention_kernels, "load_flash3", lambda torch: "library")
        torch = types.SimpleNamespace(ops=types.SimpleNamespace(aten=None))
        for dropout, names in ((0.0, ["cuDNN", "FA2", "FA3"]), (0.1, ["cuDNN", "FA2"])):
            self.assertEqual([peer.name for peer in attention_kernels.peers(torch, False, dropout=dropout)], names)

    def test_flash3(self):
        class Turned(str):
            def transpose(self, a, b):
                return Turned(f"{self}'")

        calls = []
        library = types.SimpleNamespace(fwd=lambda *a, **k: calls.append((a, k)) or (Turned("out"), Turned("lse")),
                                        bwd=lambda *a, **k: calls.append((a, k)) or tuple(map(Turned, ("dq", "dk", "dv", "more"))))
        s = types.SimpleNamespace(**{name: Turned(name) for name in ("q", "k", "v", "dout")}, causal=True, window=0)
        kernel = attention_kernels.flash3(library)
        kernel.forward(s)
        kernel.backward(s)
        self.assertEqual((s.saved, s.grads), (("out'", "lse"), ("dq'", "dk'", "dv'")))
        self.assertEqual(calls, [(("q'", "k'", "v'"), {"is_causal": True}),
                                 (("dout'", "q'", "k'", "v'", "out''", "lse"), {"is_causal": True})])
        s.window, calls[:] = 256, []
        kernel.forward(s)
        kernel.backward(s)
        wanted = {"is_causal": True, "window_size_left": 255, "window_size_right": 0}
        self.assertEqual([named for _, named in calls], [wanted, wanted])
