"""scripts/compare_attention.py and attention_kernels.py where PyTorch is: the reference, what rounding explains, bits."""
import types
import unittest

from parts import Parts

import dropout_masks
from attention_kernels import DROPOUT_KEY, flash3_packed
from compare_attention import NOISE, TENSORS, Case, check_bits, check_case, errors, reference

try:
    import torch
except ImportError:
    torch = None


@unittest.skipUnless(torch, "PyTorch is not installed")
class WithTorch(Parts):
    def test_the_reference_is_the_textbook_formula_with_autograd_in_any_chunks(self):
        torch.manual_seed(0)
        for causal in (True, False):
            q, k, v = (torch.randn(37, 8, dtype=torch.double, requires_grad=True) for _ in range(3))
            dout = torch.randn(37, 8, dtype=torch.double)
            scores = q @ k.T / 8**0.5
            if causal:
                scores = scores.masked_fill(torch.ones(37, 37).triu(1).bool(), float("-inf"))
            factors = (torch.rand(37, 37) > 0.3).double() / 0.7
            for dropout in (None, lambda i, j, factors=factors: factors[i, j]):
                out = (scores.softmax(1) * (factors if dropout else 1)) @ v
                dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
                truth = {"out": out, "dq": dq, "dk": dk, "dv": dv, "lse": scores.logsumexp(1)}
                for chunk in (1, 100, 1 << 20):
                    found, _ = reference(q.detach(), k.detach(), v.detach(), dout, causal, chunk, dropout=dropout)
                    assert all((found[name] - truth[name]).abs().max() < 1e-13 for name in truth), (causal, chunk)

    def test_what_rounding_explains(self):
        """P, dS, the result rounded to bf16, and no more; the largest error of any element counts."""
        torch.manual_seed(0)
        T, D = 200, 64

        def rounded(x):
            return x.bfloat16().double()

        for causal in (True, False):
            q, k, v, dout = (rounded(torch.randn(T, D)) for _ in range(4))
            true, limit = reference(q, k, v, dout, causal)
            scores = q @ k.T / D**0.5
            if causal:
                scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
            p = scores.softmax(1)
            out = rounded(rounded(p) @ v)
            ds = rounded(p * (dout @ v.T - (dout * out).sum(1, keepdim=True)))
            plain = {"out": out, "dq": rounded(ds @ k / D**0.5), "dk": rounded(ds.T @ q / D**0.5), "dv": rounded(rounded(p).T @ dout)}
            for name in TENSORS[:4]:
                for start, excess, explained in ((plain, 0, True), (true, 0.99, True), (true, 1.01, False), (true, float("nan"), False)):
                    result = {**dict.fromkeys(TENSORS), name: start[name].clone()[None, None]}
                    result[name][0, 0, T // 2, 5] += excess * limit[name][T // 2, 5]
                    unexplained = errors(result, {(0, 0): (true, limit)})[name][2]
                    assert (unexplained <= NOISE) == explained, (causal, name, excess, unexplained)
            if causal:  # row 0 is v[0], rounded as P V and as the result: half an ulp each, 8 bits
                assert (limit["out"][0] / v[0].abs() * 2**8 - 2).abs().max() < 0.05

    def test_the_masks_are_those_of_dropout_h(self):
        """Its dropout_drops by a C compiler: key 20240529, site 0, matrix 5, p = 0.1, the first 160 columns."""
        begin = dropout_masks.matrix_begin(20240529, 0, 5)
        for row, dropped in ((0, [0, 8, 10, 23, 26, 30, 34, 38, 64, 80, 82, 106, 108, 112, 115, 126, 129, 133, 152]),
                             (43, [4, 5, 7, 16, 20, 51, 66, 72, 95, 107, 115, 117, 123, 124, 126]),
                             (86, [21, 22, 27, 29, 33, 42, 43, 105, 110, 122, 123, 126, 128, 130, 156]),
                             (129, [1, 7, 15, 28, 32, 44, 46, 57, 66, 69, 72, 76, 105, 123, 132, 138, 142])):
            found = dropout_masks.kept(*begin, torch.tensor([[row]]), torch.arange(160), 0.1)[0]
            assert (~found).nonzero().flatten().tolist() == dropped
        assert [dropout_masks.threshold(p) for p in (0.0001, 0.1, 0.5, 0.9999)] == [1, 26, 128, 255]

    def test_dropout_of_every_kernel(self):
        """Ours is held to its masks and to rounding, peers to what they keep."""
        B, T, H, D = 4, 150, 6, 64
        case = Case(B, T, H, D, True, dropout=0.4)
        torch.manual_seed(0)
        qkv, dout = (torch.randn(B, T, *shape, D).bfloat16() for shape in ((3, H), (H,)))
        begins = [dropout_masks.matrix_begin(DROPOUT_KEY, 0, n) for n in range(B * H)]
        start, twist = torch.tensor(begins).T.reshape(2, B, H, 1, 1)
        p, scale = dropout_masks.threshold(0.4) / 256, dropout_masks.scale(0.4)
        ours = dropout_masks.kept(start, twist, torch.arange(T).view(-1, 1), torch.arange(T), 0.4) * scale

        def rounded(x):
            return x.bfloat16().double()

        class Fake:
            """P and dS in bf16, and -D too where dS is that alone, as sm90_keys.cuh has it."""

            def __init__(self, name, factors, wrong=0.0):
                self.name, self.factors, self.wrong, self.state = name, factors.double(), wrong, None

            def forward(self, state):
                pass

            backward = poison = forward

            def written(self, state):
                return [state["lse"]]

            def results(self, state):
                q, k, v = qkv.permute(2, 0, 3, 1, 4).double()
                g = dout.transpose(1, 2).double()
                scores = (q @ k.mT * D**-0.5).masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
                p, lse = scores.softmax(-1), scores.logsumexp(-1) + 0.0
                out = rounded(rounded(p * (self.factors > 0)) @ v * self.factors.max())
                d = (g * out).sum(-1, keepdim=True)
                ds = torch.where(self.factors > 0, rounded(p * (g @ v.mT * self.factors - d)), rounded(rounded(p) * -rounded(d)))
                out.view(-1)[T * D // 2 + 5] += self.wrong
                return {"out": out, "dq": rounded(ds @ k * D**-0.5), "dk": rounded(ds.mT @ q * D**-0.5),
                        "dv": rounded((rounded(p * (self.factors > 0)) * self.factors.max()).mT @ g), "lse": lse}

        def check(*kernels):
            states = {kernel: [{"lse": torch.zeros(4)}] for kernel in kernels}
            return check_case(torch, case, types.SimpleNamespace(qkv=qkv, dout=dout), states, 2)

        other = (torch.rand(B, H, T, T) >= p) * scale
        none = torch.ones(B, H, T, T)
        plain, peer = Fake("plain", none), Fake("FA2", other)
        failed, long, short, note = check(Fake("ours", ours), plain, peer)
        assert (failed, short) == ([], ["-", "equal", "ok"]), failed
        assert long[0].count(" ") == 0 and long[4].count(" ") == 2, "a ratio for the logsumexp alone"
        self.assertRegex(note, r"^ours keeps 0\.[56]\d* of P, mean \S*; FA2 keeps 0\.[56]\d* of P, mean \S*$")
        assert check(Fake("ours", ours), plain)[0] == [], "no peer"
        failed = check(Fake("ours", other), plain, peer)[0]
        assert [text.split(":")[0] for text in failed] == ["out", "dq", "dk", "dv"], "another mask than dropout.h's"
        assert [text.split(":")[0] for text in check(Fake("ours", ours, 0.1), plain, peer)[0]] == ["out"]
        self.assertRegex("; ".join(check(Fake("ours", ours), plain, Fake("FA2", none))[0]), "^FA2 keeps 1.0000 of P, mean 1.0000: expected 0.6")
        self.assertRegex("; ".join(check(Fake("ours", ours), plain, Fake("FA2", other / scale))[0]), "^FA2 keeps .*, mean 0.5.*: expected")
        failed = check(Fake("ours", ours), plain, Fake("FA2", other, float("nan")))[0]
        assert failed[0] == "FA2: out is not finite" and len(failed) == 2

    def test_check_bits_sees_one_bit_in_one_launch_and_the_sign_of_a_zero(self):
        class Fake:
            def __init__(self, number, launch):
                self.number, self.launch, self.launches = number, launch, 0

            def poison(self, state):
                state[0].fill_(float("nan"))

            def forward(self, state):
                state[0].copy_(torch.tensor([1.0, float("nan")]))
                self.launches += 1
                if self.launches == self.launch:
                    state[1][0] = self.number

            def backward(self, state):
                pass

            def written(self, state):
                return state

        def equal(number, launch):
            state = torch.zeros(2), torch.zeros(4, dtype=torch.bfloat16)
            fake = Fake(number, launch)
            fake.forward(state)
            return check_bits(torch, fake, state, 10)

        assert equal(1.0, 99)
        assert not equal(1.0, 11) and not equal(1.0, 5) and not equal(-0.0, 11)

    def test_flash_attention_3_as_an_operator(self):
        """Its fake and its gradient are as the real ones, packed."""
        class Library:
            def parts(self, q, k, v):
                q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
                scores = (q @ k.mT * q.shape[-1]**-0.5).masked_fill(torch.ones(q.shape[2], q.shape[2]).triu(1).bool(), float("-inf"))
                return q, k, v, scores

            def fwd(self, q, k, v, is_causal):
                *_, values, scores = self.parts(q, k, v)
                return (scores.softmax(-1) @ values).transpose(1, 2).to(q.dtype).contiguous(), scores.logsumexp(-1), None, None

            def bwd(self, dout, q, k, v, out, lse, dq, dk, dv, is_causal):
                q, k, v, scores = self.parts(q, k, v)
                dout, p = dout.transpose(1, 2).float(), (scores - lse[..., None]).exp()
                ds = p * (dout @ v.mT - (dout * (p @ v)).sum(-1, keepdim=True)) * q.shape[-1]**-0.5
                for place, x in zip((dq, dk, dv), (ds @ k, ds.mT @ q, p.mT @ dout)):
                    place.copy_(x.transpose(1, 2))

        kernel = flash3_packed(torch, Library())
        torch.manual_seed(0)
        qkv = torch.randn(2, 16, 3, 2, 8, requires_grad=True)
        torch.library.opcheck(torch.ops.compare_train.flash3_forward.default, (qkv,))
        dout = torch.randn(2, 16, 2, 8)

        def plain(qkv):
            return torch.nn.functional.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True).transpose(1, 2)

        for mine, theirs in zip(*[(f(qkv), *torch.autograd.grad(f(qkv), qkv, dout)) for f in (kernel, plain)]):
            assert (mine - theirs).abs().max() < 1e-5
