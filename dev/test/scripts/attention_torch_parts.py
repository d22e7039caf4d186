"""scripts/compare_attention.py and attention_kernels.py where PyTorch is: the reference, what rounding explains, bits."""
import unittest

from parts import Parts

from attention_kernels import flash3_packed
from compare_attention import NOISE, TENSORS, check_bits, errors, reference

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
            out = scores.softmax(1) @ v
            dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout)
            truth = {"out": out, "dq": dq, "dk": dk, "dv": dv, "lse": scores.logsumexp(1)}
            for chunk in (1, 100, 1 << 20):
                found, _ = reference(q.detach(), k.detach(), v.detach(), dout, causal, chunk)
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
