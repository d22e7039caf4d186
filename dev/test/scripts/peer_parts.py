"""scripts/torch_gpt2.py, read through a stand-in for PyTorch: the model's formula, its weights, its training step, its clock."""
import array
import contextlib
import importlib
import io
import json
import math
import sys
import types

from parts import Parts

import symbolic_torch


class Values(list):
    """A tensor of whole numbers in one or two rows of indices, as read_batches uses it."""

    def to(self, _):
        return self

    def bitwise_and_(self, mask):
        return Values(value & mask for value in self)

    def __getitem__(self, key):
        found = super().__getitem__(key)
        return Values(found) if isinstance(key, slice) else found

    def view(self, B, T):
        return Rows([list(self[b * T:(b + 1) * T]) for b in range(B)])


class Rows(list):
    def to(self, device):
        assert device == "cuda"
        return self


class Peer(Parts):
    NAMES = ("torch", "torch.nn", "torch.nn.functional", "torch.nn.attention", "torch_gpt2")

    def setUp(self):
        super().setUp()
        before = {name: sys.modules.pop(name, None) for name in self.NAMES}

        def put_back():
            for name, module in before.items():
                sys.modules.pop(name, None)
                if module:
                    sys.modules[name] = module

        self.addCleanup(put_back)
        self.noted, self.seconds = [], 0.0
        self.torch = symbolic_torch.install(self.noted, lambda: self.seconds)
        self.peer = importlib.import_module("torch_gpt2")

    def test_sizes(self):
        self.assertEqual((self.peer.PADDED_VOCABULARY, self.peer.WARM_UP_S), (50304, 1.0))

    def test_attention(self):
        found = self.peer.Attention(2, 4, self.peer.sdpa)(symbolic_torch.Expression("x", (2, 8, 4)))
        qkv = "Linear(4, 12)(x).view(2, 8, 3, 2, 2).permute(2, 0, 3, 1, 4)"
        heads = ", ".join(f"{qkv}[{i}]" for i in range(3))
        self.assertEqual(str(found),
                         f"Linear(4, 4)(scaled_dot_product_attention({heads}, dropout_p=0.0, is_causal=True).transpose(1, 2).reshape(2, 8, 4))")

    def test_a_layer(self):
        layer = self.peer.Layer(2, 4, None)
        layer.attention = types.SimpleNamespace(__call__=None)
        layer.attention = lambda x: symbolic_torch.Expression(f"A({x})")
        x = "(x + A(LayerNorm(4,)(x)))"
        self.assertEqual(str(layer(symbolic_torch.Expression("x"))),
                         f"({x} + Linear(16, 4)(GELU('approximate=tanh',)(Linear(4, 16)(LayerNorm(4,)({x})))))")

    def test_the_model(self):
        model = self.peer.GPT2(2, 2, 4, 8)
        model.layers = [lambda x, i=i: symbolic_torch.Expression(f"layer{i}({x})") for i in range(2)]
        x = "layer1(layer0((Embedding(50304, 4)(t) + Embedding(8, 4).weight[:8])))"
        self.assertEqual(str(model(symbolic_torch.Expression("t"), symbolic_torch.Expression("y"))),
                         f"cross_entropy(linear(LayerNorm(4,)({x}), Embedding(50304, 4).weight).flatten(0, 1), y.flatten())")

    def test_dropout(self):
        """Of the embedding, attention's probabilities and what each branch adds, as llmc/model/MEMORY.md has it; nowhere else."""
        x, drops = symbolic_torch.Expression("x"), self.peer.attention_kernel("cudnn", 0.1)
        self.assertIn("[2], dropout_p=0.1, is_causal=True)", str(drops(x)))
        layer = self.peer.Layer(2, 4, drops, 0.2)
        between = symbolic_torch.Expression(f"(x + dropout({layer.attention(layer.norm1(x))}, 0.2))")
        self.assertEqual(str(layer(x)), f"({between} + dropout({layer.mlp(layer.norm2(between))}, 0.2))")
        model = self.peer.GPT2(2, 2, 4, 8, drops, 0.3)
        self.assertEqual([layer.dropout for layer in model.layers], [0.3, 0.3])
        model.layers = []
        self.assertIn("(LayerNorm(4,)(dropout((Embedding(50304, 4)(t) + Embedding(8, 4).weight[:8]), 0.3)), ",
                      str(model(symbolic_torch.Expression("t"), symbolic_torch.Expression("y"))))

    def test_dropout_reaches_model_and_kernel(self):
        made = []
        self.replace(self.peer, "GPT2", lambda *words: made.append(words) or symbolic_torch.Leaf("GPT2", (), {}))
        self.replace(self.peer, "sdpa", lambda qkv, dropout=0.0: (qkv, dropout))
        for dropout in (0.0, 0.1):
            self.step(dropout=dropout)
            *sizes, kernel, of_model = made.pop()
            self.assertEqual((sizes, kernel("qkv"), of_model), ([1, 2, 4, 8], ("qkv", dropout), dropout))

    def test_flash3_has_no_dropout(self):
        self.replace(self.peer, "load_flash3", lambda torch: self.fail("it is loaded"))
        self.assertEqual(self.said(self.peer.attention_kernel, "flash3", 0.1)[3], "error: flash3: has no dropout; hint: cudnn or flash")

    def test_the_first_weights(self):
        self.peer.GPT2(8, 2, 4, 8)
        drawn = dict(text[len("normal_("):-1].split(", std=") for text in self.noted if text.startswith("normal_"))
        self.assertEqual(len(drawn), 2 + 8 * 4, "matrices alone")
        self.assertFalse(any("norm" in name or "bias" in name for name in drawn))
        for name, std in drawn.items():
            residual = "attention.projection" in name or "mlp.2" in name
            self.assertAlmostEqual(float(std), 0.02 / math.sqrt(2 * 8) if residual else 0.02, msg=name)

    def test_batches(self):
        path = self.file("x.bin", bytes(1024) + array.array("H", [*range(12), 65535]).tobytes())
        self.torch.frombuffer = lambda data, dtype: Values(array.array("h", bytes(data)))
        self.assertEqual(self.peer.read_batches(path, 2, 3), [([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, 6]]),
                                                              ([[6, 7, 8], [9, 10, 11]], [[7, 8, 9], [10, 11, 65535]])])
        self.assertEqual(self.said(self.peer.read_batches, path, 13, 1)[3], f"error: {path}: expected more than 13 tokens, found 13")

    def step(self, attention="cudnn", mode="default", dropout=0.0):
        self.noted.clear()
        self.replace(self.peer, "MODELS", {"small": (1, 2, 4)})
        return self.peer.make_step(types.SimpleNamespace(model="small", seq=8, dropout=dropout, bucket_mb=25), attention, mode)

    def test_a_training_step(self):
        step = self.step()
        self.assertEqual([text for text in self.noted if not text.startswith("normal_")],
                         ["manual_seed(0)", "precision(high)", "with device(cuda)", "end device(cuda)", "AdamW(lr=0.0001, betas=(0.9, 0.95), fused=True)",
                          "compile(dynamic=False, mode=None)"])
        self.noted.clear()

        class Loss(symbolic_torch.Expression):
            def backward(loss):
                self.noted.append("backward")

            def __rmul__(loss, share):
                self.noted.append(f"times {share}")
                return loss

        self.replace(self.peer.F, "cross_entropy", lambda *_: Loss("loss"))
        batch = (symbolic_torch.Expression("t"), symbolic_torch.Expression("y"))
        self.assertEqual(str(step([batch])), "loss.detach()")
        self.assertEqual(self.noted, ["mark_step()", "with autocast(cuda, bf16)", "with sdpa_kernel(cudnn)", "end sdpa_kernel(cudnn)",
                                      "end autocast(cuda, bf16)", "backward", "clip(16, 1.0)", "optimizer.step()",
                                      "zero_grad(set_to_none=True)"])
        forward = self.noted[:5]
        self.noted.clear()
        self.assertEqual(str(step([batch, batch])), "loss.detach()")
        self.assertEqual(self.noted, 2 * [*forward, "times 0.5", "backward"] + ["clip(16, 1.0)", "optimizer.step()", "zero_grad(set_to_none=True)"])

    def test_only_the_last_micro_step_reduces(self):
        self.replace(self.peer, "N_RANKS", 2)

        @contextlib.contextmanager
        def no_sync():
            self.noted.append("alone")
            yield
            self.noted.append("together")

        class Loss(symbolic_torch.Expression):
            def backward(loss):
                self.noted.append("backward")

            def __rmul__(loss, share):
                return loss

        self.replace(self.peer, "over_ranks", lambda model, bucket_mb: types.SimpleNamespace(no_sync=no_sync))
        self.replace(self.torch, "compile", lambda model, **_: lambda tokens, targets: Loss("loss"))
        step = self.step()
        self.noted.clear()
        step([(1, 2)] * 3)
        self.assertEqual([text for text in self.noted if text in ("alone", "together", "backward")], 2 * ["alone", "backward", "together"] + ["backward"])

    def test_alone(self):
        self.assertEqual((self.peer.N_RANKS, self.peer.join_ranks(), self.peer.slowest(0.5), self.peer.over_ranks("model", 25)),
                         (1, 0, 0.5, "model"))

    def test_ranks(self):
        """As one of two: what PyTorch is asked for, and that the ranks train as many steps as the slowest guess says."""
        self.replace(self.peer, "N_RANKS", 2)
        self.replace(self.peer.os, "environ", {"LOCAL_RANK": "1"})
        asked = []
        self.torch.cuda.set_device = lambda card: asked.append(f"card {card}")
        self.torch.cuda.current_device = lambda: 1
        self.torch.tensor = lambda values, device: types.SimpleNamespace(item=lambda: values[0])
        self.torch.distributed = types.SimpleNamespace(
            init_process_group=lambda backend: asked.append(backend), get_rank=lambda: 1, ReduceOp=types.SimpleNamespace(MAX="max"),
            all_reduce=lambda x, op: asked.append(op) or setattr(x, "item", lambda: 0.75))
        self.peer.nn.parallel = types.SimpleNamespace(DistributedDataParallel=lambda model, **named: asked.append(named) or f"ranks of {model}")
        self.assertEqual((self.peer.join_ranks(), self.peer.slowest(0.5), self.peer.over_ranks("a model", 100.0)), (1, 0.75, "ranks of a model"))
        self.assertEqual(asked, ["card 1", "nccl", "max", {"device_ids": [1], "bucket_cap_mb": 100.0, "gradient_as_bucket_view": True,
                                                           "static_graph": True}])
        self.replace(self.peer, "slowest", lambda step_s: 2 * step_s)
        self.replace(self.peer.time, "monotonic", lambda: 0.0)
        step = lambda batches: types.SimpleNamespace(item=lambda: 3.5)  # noqa: E731
        self.assertEqual(self.peer.train(step, [("a", 0)], 8.0, 0.5)["steps"], 9)

    def test_modes(self):
        self.step(mode="max-autotune")
        self.assertIn("compile(dynamic=False, mode=max-autotune)", self.noted)

    def test_attentions(self):
        self.assertIs(self.peer.attention_kernel("cudnn"), self.peer.sdpa)
        self.assertIs(self.peer.attention_kernel("flash"), self.peer.sdpa)
        self.replace(self.peer, "load_flash3", lambda torch: None)
        self.assertRegex(self.said(self.peer.attention_kernel, "flash3")[3], "^error: flash3: neither")
        checked = []
        for name, value in (("load_flash3", lambda torch: "library"), ("flash3_packed", lambda torch, library: f"packed {library}"),
                            ("check_kernel", checked.append)):
            self.replace(self.peer, name, value)
        self.assertEqual(self.peer.attention_kernel("flash3"), "packed library")
        self.assertEqual(checked, ["packed library"], "held to PyTorch's before it is used")

    def test_a_kernel_that_is_another(self):
        class Result:
            def __init__(self, value):
                self.value = value

            def __sub__(self, other):
                return Result(self.value - other.value)

            def detach(self):
                return self

            float = norm = detach

            def __truediv__(self, other):
                return types.SimpleNamespace(item=lambda: abs(self.value) / other.value)

        self.torch.randn = lambda *shape, **_: Result(1.0)
        self.replace(self.peer, "sdpa", lambda qkv: Result(100.0))
        for out, gradient, refused in ((101.0, 1.0, False), (102.5, 1.0, True), (100.0, 1.03, True), (float("nan"), 1.0, True)):
            gradients = iter([gradient, 1.0])
            self.torch.autograd = types.SimpleNamespace(grad=lambda *_: (Result(next(gradients)),))
            code = self.said(self.peer.check_kernel, lambda qkv: Result(out))[3]
            self.assertEqual(code is not None, refused, (out, gradient, code))

    def test_matrices_alone_decay(self):
        groups = []
        self.replace(self.torch.optim, "AdamW", lambda found, **_: groups.extend(found))
        self.step()
        self.assertEqual([group["weight_decay"] for group in groups], [0.1, 0.0])
        self.assertEqual([{p.dim() for p in group["params"]} for group in groups], [{2}, {1}])
        self.assertEqual(sum(len(group["params"]) for group in groups), 16)

    def test_the_clock(self):
        self.replace(self.peer.time, "monotonic", lambda: self.seconds)
        given = []

        def step(batches):
            given.extend(tokens for tokens, _ in batches)
            self.seconds += 0.5
            return types.SimpleNamespace(item=lambda: 3.5)

        self.noted.clear()
        found = self.peer.train(step, [("a", 0), ("b", 0), ("c", 0)], 2.0, 0.25)
        self.assertEqual(found, {"steps": 9, "seconds": 4.5, "ms_median": 500.0, "loss": 3.5, "memory": 11, "reserved": 22})
        self.assertEqual("".join(given), "abca" + "abcabcabc", "a second of warm-up by the guess of 0.25 s, then 2 s and a little")
        self.assertEqual(self.noted, ["reset_peak()", "synchronize()", "synchronize()"])
        self.assertEqual(self.peer.train(step, [("a", 0)], 0.1, 5.0)["steps"], 2)
        self.assertEqual(self.peer.train(step, [("a", 0)], 2.1, 1.0)["steps"], 3, "as long as asked for, or longer")
        given.clear()
        self.assertEqual(self.peer.train(step, [("a", 0), ("b", 0), ("c", 0)], 0.1, 1.0, 2)["steps"], 2)
        self.assertEqual("".join(given), "ab" + "abca", "two micro-steps a step")

    def test_the_program(self):
        turns = []

        def train(step, batches, seconds, step_s, micro_steps):
            turns.append((seconds, step_s, micro_steps))
            return {"steps": 4, "seconds": 8.0 * micro_steps}

        def step(batches):
            self.seconds += 3.0

        made = []
        for name, value in (("train", train), ("read_batches", lambda *arguments: [arguments]),
                            ("make_step", lambda arguments, *way: made.append((*way, arguments.dropout)) or step)):
            self.replace(self.peer, name, value)
        self.replace(self.peer.time, "monotonic", lambda: self.seconds)
        self.replace(sys, "argv", ["torch_gpt2.py", "--model", "d12", "--batch", "2", "--seq", "8", "--tokens", "x.bin"])
        self.replace(sys, "stdin", io.StringIO("flash max-autotune\n10\n5 4\n6\n"))
        out = self.said(self.peer.main)[1].splitlines()
        self.assertEqual([json.loads(line) for line in out], [{"compiled_s": 9.0, "step_s": 3.0}] + [{"steps": 4, "seconds": s} for s in (8.0, 32.0, 8.0)])
        self.assertEqual((turns, made), ([(10.0, 3.0, 1), (5.0, 8.0, 4), (6.0, 2.0, 1)], [("flash", "max-autotune", 0.0)]))
        for line in ("cudnn\n", "other default\n", "cudnn default more\n"):
            sys.stdin = io.StringIO(line)
            self.assertRegex(self.said(self.peer.main)[3], "^error: expected one of cudnn, flash, flash3 and a mode, found")
        sys.stdin = io.StringIO("")
        self.assertEqual(self.said(self.peer.main), (None, "", "", None))
        sys.argv += ["--dropout", "0.1"]
        sys.stdin = io.StringIO("cudnn default\n")
        self.said(self.peer.main)
        self.assertEqual(made[-1], ("cudnn", "default", 0.1))
        for p in ("1", "-0.1", "x", "nan"):
            sys.argv[-1] = p
            self.refused("--dropout: expected a number from 0 to 0.99, found", 2, self.peer.main)
