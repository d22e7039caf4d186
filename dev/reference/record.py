#!/usr/bin/env python3
"""Records what PyTorch computes for GPT-2, for test_gpt2.cu to hold every backend to.

    python3 dev/reference/record.py                  # all models, errors of PyTorch's bf16 on the CPU
    python3 dev/reference/record.py --device cuda    # the same values, errors of PyTorch's bf16 on the GPU
    python3 dev/reference/record.py hd24 --out DIR   # one model

Per model one file NAME.ref: every activation, logits, every gradient, the losses and gradient norms of some AdamW
steps and the weights after them, computed in float64 and rounded to fp32; beside each the error of PyTorch's own
fp32 run and of its own bf16 run. Weights and tokens come from an integer hash that reference.h computes as well, so
they are not stored. Needs PyTorch alone (1.13 or later). The layout is in README.md.
"""
import argparse
import collections
import functools
import math
import os
import struct
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "scripts"))
from comparison import import_torch  # noqa: E402  scripts/comparison.py
from dropout_masks import GOLDEN, MASK32, MASK64, kept, matrix_begin, mix64, scale  # noqa: E402

torch = import_torch()
F = torch.nn.functional

LR, BETA1, BETA2, EPS, WEIGHT_DECAY, CLIP, MOMENTUM = 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 0.95

# To add a model: a row here, its name in test_gpt2.cu, then run this script.
# log2_scale: matrices and embeddings are uniform in +-2^log2_scale; larger than GPT-2's 0.02 where channels are few,
# so that attention is not flat and gradients are not trivial. max_entries: a larger tensor is recorded in so many
# hash-chosen entries and the norm of the whole. window: keys that a query sees, 0: all. dropout: with the masks of
# llmc/model/dropout.h; such a model has no activations recorded. optimizer: of the blocks' matrices; the rest has AdamW.
Model = collections.namedtuple(
    "Model", "n_layer n_head n_embd max_seq_len vocab_size B T steps log2_scale max_entries window dropout optimizer lr",
    defaults=(0, 0.0, "adamw", LR))
MODELS = {
    "hd24": Model(3, 2, 48, 40, 211, 2, 37, 10, -2, 16384),
    "hd64": Model(2, 2, 128, 80, 211, 2, 65, 10, -3, 8192),
    "hd128": Model(1, 2, 256, 129, 331, 2, 129, 10, -3, 8192),
    "hd64_window": Model(2, 2, 128, 200, 211, 2, 181, 10, -3, 2048, window=50),
    "hd64_dropout": Model(2, 2, 128, 80, 211, 2, 65, 10, -3, 2048, dropout=0.2),
    "hd24_muon": Model(3, 2, 48, 40, 211, 2, 37, 10, -2, 2048, optimizer="muon", lr=5e-3),
    "d12": Model(12, 12, 768, 1024, 50257, 1, 64, 3, -5, 256),
}
DROPOUT_SEED, STREAM_DROPOUT = 1337, 0x64726F70
SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTN_PROJ, SITE_MLP_PROJ, N_SITES = range(5)
# Bf16 runs of which steps/... have the rms error: their few numbers may all be right by luck in one run (d12, three losses:
# 3.9e-5 on an H200, 3.6e-4 to 4.1e-4 on a CPU). Other tensors have hundreds of entries and need no second run.
BF16_DRAWS = 8
STREAM_TOKENS, STREAM_TARGETS, STREAM_ENTRIES = 1000000, 1000001, 2000000


def mix(x):
    """lowbias32 (Chris Wellons), a bijection of 32-bit integers; x is an int or an int64 tensor."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & MASK32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & MASK32
    return x ^ (x >> 16)


def hash_stream(stream, begin, n):
    """Entries [begin, begin+n) of a stream: 32-bit values as int64 (n)."""
    key = mix(stream)
    return mix((mix((torch.arange(begin, begin + n) + key) & MASK32) + mix(key)) & MASK32)


def hash_uniform(stream, n, log2_scale):
    """n fp32 values, uniform in [-2^log2_scale, 2^log2_scale) on a grid of 24 bits: exact in fp32."""
    out = torch.empty(n)
    for begin in range(0, n, 1 << 20):
        h = hash_stream(stream, begin, min(1 << 20, n - begin))
        out[begin : begin + len(h)] = ((h >> 8) - (1 << 23)).float() * 2.0 ** (log2_scale - 23)
    return out


def random_stream(seed, purpose):
    return mix64((mix64((seed + GOLDEN) & MASK64) + GOLDEN * (purpose + 1)) & MASK64)


class Dropout:
    """The masks of one micro-step: llmc/model/gpt2.c says the same in C."""

    def __init__(self, p, step, micro_step=0, seed=DROPOUT_SEED):
        of_seed = random_stream(seed, STREAM_DROPOUT)
        self.p, self.key = p, random_stream((of_seed + step) & MASK64, micro_step)

    def __call__(self, x, site, layer):
        """x with elements zeroed, the others times 1/(1-p). A matrix of the mask has the last dimension as columns; its rows
        are a head's (B, heads, rows, columns) or all there are."""
        if self.p == 0:
            return x
        columns = x.shape[-1]
        rows = x.shape[-2] if x.dim() == 4 else x.numel() // columns
        assert rows <= 65536 # more are several matrices
        begins = [matrix_begin(self.key, layer * N_SITES + site, n) for n in range(x.numel() // (rows * columns))]
        start, twist = torch.tensor(begins).T.reshape(2, -1, 1, 1)
        keep = kept(start, twist, torch.arange(rows).view(-1, 1), torch.arange(columns), self.p)
        return x * keep.view(x.shape).to(x.device, x.dtype) * scale(self.p)


def tensor_list(m):
    """(name, shape, stream, kind) of every parameter, in the order of gpt2.h's TensorId."""
    C = m.n_embd
    per_layer = [
        ("ln_1.weight", (C,), "norm"), ("ln_1.bias", (C,), "bias"),
        ("attn.c_attn.weight", (3 * C, C), "matrix"), ("attn.c_attn.bias", (3 * C,), "bias"),
        ("attn.c_proj.weight", (C, C), "matrix"), ("attn.c_proj.bias", (C,), "bias"),
        ("ln_2.weight", (C,), "norm"), ("ln_2.bias", (C,), "bias"),
        ("mlp.c_fc.weight", (4 * C, C), "matrix"), ("mlp.c_fc.bias", (4 * C,), "bias"),
        ("mlp.c_proj.weight", (C, 4 * C), "matrix"), ("mlp.c_proj.bias", (C,), "bias"),
    ]
    tensors = [("wte.weight", (m.vocab_size, C), 0, "matrix"), ("wpe.weight", (m.max_seq_len, C), 1000, "matrix")]
    for i, (name, shape, kind) in enumerate(per_layer):
        tensors += [(f"h.{l}.{name}", shape, 1000 * (i + 2) + l, kind) for l in range(m.n_layer)]
    return tensors + [("ln_f.weight", (C,), 14000, "norm"), ("ln_f.bias", (C,), 15000, "bias")]


@functools.cache
def initial_weights(m):
    """{name: fp32 tensor}; norm weights are 1 +- 1/8, biases +- 1/16."""
    weights = {}
    for name, shape, stream, kind in tensor_list(m):
        log2_scale = {"matrix": m.log2_scale, "norm": -3, "bias": -4}[kind]
        values = hash_uniform(stream, math.prod(shape), log2_scale).view(shape)
        weights[name] = values + 1 if kind == "norm" else values
    return weights


def layernorm(x, p, name, act, key):
    stats = x if x.dtype == torch.float64 else x.float()
    act[f"{name}.mean{key}"] = stats.mean(-1)
    act[f"{name}.rstd{key}"] = (stats.var(-1, unbiased=False) + 1e-5).rsqrt()
    return F.layer_norm(x, (x.shape[-1],), p["weight"], p["bias"], 1e-5)


def sub(p, prefix):
    return {name[len(prefix) + 1 :]: w for name, w in p.items() if name.startswith(prefix + ".")}


def attention(x, p, n_head, window, drop, layer, act, key):
    B, T, C = x.shape
    qkv = F.linear(x, p["c_attn.weight"], p["c_attn.bias"])
    q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in qkv.split(C, dim=2))
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(C // n_head))
    visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
    if window:
        visible = visible.triu(1 - window)
    scores = scores.masked_fill(~visible, float("-inf"))
    out = (drop(F.softmax(scores, dim=-1), SITE_ATTENTION, layer) @ v).transpose(1, 2).reshape(B, T, C)
    act[f"qkv{key}"], act[f"attn{key}"] = qkv, out
    act[f"lse{key}"] = torch.logsumexp(scores if x.dtype == torch.float64 else scores.float(), dim=-1)
    return F.linear(out, p["c_proj.weight"], p["c_proj.bias"])


def forward(m, p, tokens, targets, drop):
    """Mean loss and {name: activation}, named as in gpt2.h's ActivationId; the weights' dtype is the compute dtype."""
    act = {}
    x = drop(p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]], SITE_EMBEDDING, 0)
    act["encoded"] = x
    for l in range(m.n_layer):
        h, key = sub(p, f"h.{l}"), f".{l}"
        act[f"ln_1{key}"] = layernorm(x, sub(h, "ln_1"), "ln_1", act, key)
        branch = attention(act[f"ln_1{key}"], sub(h, "attn"), m.n_head, m.window, drop, l, act, key)
        x = x + drop(branch, SITE_ATTN_PROJ, l)
        act[f"residual_2{key}"] = x
        act[f"ln_2{key}"] = layernorm(x, sub(h, "ln_2"), "ln_2", act, key)
        act[f"fch{key}"] = F.linear(act[f"ln_2{key}"], h["mlp.c_fc.weight"], h["mlp.c_fc.bias"])
        act[f"fch_gelu{key}"] = F.gelu(act[f"fch{key}"], approximate="tanh")
        x = x + drop(F.linear(act[f"fch_gelu{key}"], h["mlp.c_proj.weight"], h["mlp.c_proj.bias"]), SITE_MLP_PROJ, l)
        act[f"residual_3{key}"] = x
    act["ln_f"] = layernorm(x, sub(p, "ln_f"), "ln_f", act, "")
    act["logits"] = F.linear(act["ln_f"], p["wte.weight"])
    z = act["logits"] if x.dtype == torch.float64 else act["logits"].float()
    act["losses"] = F.cross_entropy(z.flatten(0, 1), targets.flatten(), reduction="none").view(tokens.shape)
    return act["losses"].mean(), act


def reordered(m, weights, draw):
    """The same function with the hidden channels of every MLP in another order, so that only roundings differ; draw 0 is
    the order of GPT-2."""
    order = torch.randperm(4 * m.n_embd, generator=torch.Generator().manual_seed(draw))
    rows, columns = ("mlp.c_fc.weight", "mlp.c_fc.bias"), ("mlp.c_proj.weight",)
    return {name: w if draw == 0 else w[order] if name.endswith(rows) else w[:, order] if name.endswith(columns) else w
            for name, w in weights.items()}


# Muon's polynomials, x becomes a x + b x^3 + c x^5, as llmc/model/newton_schulz.c has them: what the norm of the matrix
# is multiplied with before, and (a, b, c) of the steps.
POLYNOMIALS = {
    "polar-express": (1.02, ((8.156554524902461, -22.48329292557795, 15.878769915207462),
                             (4.042929935166739, -2.808917465908714, 0.5000178451051316),
                             (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
                             (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
                             (2.3465413258596377, -1.7097828382687081, 0.42323551169305323))),
    "jordan": (1.0, ((3.4445, -4.7750, 2.0315),) * 5),
}


def orthogonalised(matrix, polynomial):
    """The nearest semi-orthogonal matrix, nearly: singular values become about 1."""
    margin, steps = POLYNOMIALS[polynomial]
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (margin * x.norm())
    for a, b, c in steps:
        A = x @ x.T
        x = a * x + (b * A + c * A @ A) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Jordan et al. 2024, with Nesterov's momentum; the updates are as large as AdamW's (Liu et al. 2025), decay is decoupled.
    parts: matrices of which a parameter is made, one above the other; dtype: of the products."""

    def __init__(self, groups, weight_decay, lr=LR, momentum=MOMENTUM, polynomial="polar-express", dtype=None):
        super().__init__(groups, {"weight_decay": weight_decay, "lr": lr, "momentum": momentum, "polynomial": polynomial,
                                  "dtype": dtype})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                average = self.state[w].setdefault("momentum", torch.zeros_like(w))
                average.lerp_(w.grad, 1 - group["momentum"])
                ahead = w.grad.lerp(average, group["momentum"]).to(group["dtype"] or w.dtype)
                update = torch.cat([0.2 * math.sqrt(max(part.shape)) * orthogonalised(part, group["polynomial"])
                                    for part in ahead.chunk(group["parts"])])
                w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update.to(w.dtype))


def optimizers(weights, kind, weight_decay, momentum=MOMENTUM, polynomial="polar-express", dtype=None, **adamw):
    """AdamW of all weights, or with Muon of those that are no matrices of the blocks; only matrices and embeddings decay."""
    matrices = {name: w for name, w in weights.items() if kind == "muon" and name.startswith("h.") and w.dim() == 2}
    others = [w for name, w in weights.items() if name not in matrices]
    decay, no_decay = ([w for w in others if (w.dim() == 2) == two] for two in (True, False))
    result = [torch.optim.AdamW([{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}],
                                **adamw)]
    if matrices:
        result.append(Muon([{"params": [w], "parts": 3 if "c_attn" in name else 1} for name, w in matrices.items()],
                           weight_decay, momentum=momentum, polynomial=polynomial, dtype=dtype))
        for group in result[1].param_groups:
            group["lr"] = result[0].param_groups[0]["lr"]
    return result


def run(m, master_dtype, compute_dtype, device, draw=0):
    """{name: tensor} of one training run, every value back on the CPU.

    bf16: fp32 master weights, of which each step's forward and backward use a bf16 copy; PyTorch then hands the
    gradients, themselves bf16, to AdamW in fp32.
    """
    weights = {name: w.to(device, master_dtype).clone().requires_grad_()
               for name, w in reordered(m, initial_weights(m), draw).items()}
    updates = optimizers(weights, m.optimizer, WEIGHT_DECAY, dtype=compute_dtype, lr=m.lr, betas=(BETA1, BETA2), eps=EPS)
    n = m.B * m.T
    tokens = (hash_stream(STREAM_TOKENS, 0, n) % m.vocab_size).view(m.B, m.T).to(device)
    targets = (hash_stream(STREAM_TARGETS, 0, n) % m.vocab_size).view(m.B, m.T).to(device)
    result, losses, norms = {}, [], []
    for step in range(m.steps):
        loss, act = forward(m, {name: w.to(compute_dtype) for name, w in weights.items()}, tokens, targets,
                            Dropout(m.dropout, step + 1))
        for optimizer in updates:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if step == 0:
            if m.dropout == 0:
                result.update({f"act/{name}": a.detach().cpu() for name, a in act.items()})
            result.update({f"grad/{name}": w.grad.detach().cpu().clone() for name, w in weights.items()})
        del act
        norm = math.sqrt(sum(float(w.grad.double().square().sum()) for w in weights.values()))
        losses.append(float(loss))
        norms.append(norm)
        for w in weights.values():
            w.grad *= min(1.0, CLIP / norm)
        for optimizer in updates:
            optimizer.step()
    result["steps/loss"] = torch.tensor(losses, dtype=torch.float64)
    result["steps/grad_norm"] = torch.tensor(norms, dtype=torch.float64)
    # Softmax does not see the key bias: its gradient is zero but for rounding, and Adam makes full steps of rounding.
    result.update({f"final/{name}": w.detach().cpu() for name, w in weights.items() if "c_attn.bias" not in name})
    return result


def entries(index, values, max_entries):
    """The recorded entries of record number index: all, or hash-chosen ones (with replacement)."""
    flat = values.flatten()
    if flat.numel() <= max_entries:
        return flat
    return flat[hash_stream(STREAM_ENTRIES + index, 0, max_entries) % flat.numel()]


def relative_error(index, got, want, max_entries):
    """Error of the recorded entries of record number index, scaled to the whole tensor, over the norm of the whole: what
    test_gpt2.cu computes of ours."""
    difference = entries(index, got.double(), max_entries) - entries(index, want.double(), max_entries)
    scale = math.sqrt(want.numel() / difference.numel())
    return scale * float(difference.norm()) / max(float(want.double().norm()), 1e-30)


def write(path, m, recorder, records):
    """The layout of README.md; records: (name, shape, entries, norm, fp32 error, bf16 error)."""
    with open(path + ".tmp", "wb") as f:
        f.write(struct.pack("<8s11i6fi40sif", b"GPT2REF1", len(records), *m[:10], m.lr, BETA1, BETA2, EPS, WEIGHT_DECAY, CLIP,
                            m.window, recorder.encode(), m.optimizer == "muon", m.dropout))
        for name, shape, data, norm, fp32_error, bf16_error in records:
            shape = list(shape) + [1] * (4 - len(shape))
            f.write(struct.pack("<56s4iqdff", name.encode(), *shape, data.numel(), norm, fp32_error, bf16_error))
            f.write(struct.pack(f"<{data.numel()}f", *data.tolist()))
    os.replace(path + ".tmp", path)


def run_errors(m, truth, dtype, device, draw=0, prefix=""):
    """{name: error} of one run, of the records whose names begin with prefix."""
    result = run(m, torch.float32, dtype, device, draw)
    return {key: relative_error(index, result[key], want, m.max_entries)
            for index, (key, want) in enumerate(truth.items()) if key.startswith(prefix)}


def record(name, device, out):
    m = MODELS[name]
    truth = run(m, torch.float64, torch.float64, "cpu")
    errors = [run_errors(m, truth, torch.float32, "cpu"), run_errors(m, truth, torch.bfloat16, device)]
    draws = [errors[1]] + [run_errors(m, truth, torch.bfloat16, device, draw, "steps/") for draw in range(1, BF16_DRAWS)]
    for key in draws[-1]:
        of_draws = [draw[key] for draw in draws]
        print(f"{name}: {key}: errors of bf16 runs " + " ".join(f"{e:.1e}" for e in of_draws))
        errors[1][key] = math.sqrt(sum(e * e for e in of_draws) / BF16_DRAWS)
    records = []
    for index, (key, want) in enumerate(truth.items()):
        data = entries(index, want, m.max_entries).float()
        assert torch.isfinite(data).all(), key
        records.append((key, want.shape, data, float(want.norm()), errors[0][key], errors[1][key]))
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    path = os.path.join(out, name + ".ref")
    write(path, m, f"torch {torch.__version__}, bf16 on {where}"[:39], records)
    print(f"{path}: {len(records)} tensors, {os.path.getsize(path)} bytes, losses "
          + " ".join(f"{loss:.6f}" for loss in truth["steps/loss"].tolist()))
    for kind in ("act", "grad", "steps", "final"):
        keys = [key for key in truth if key.startswith(kind + "/")]
        if not keys:
            continue
        worst = [max(keys, key=lambda key, e=e: e[key]) for e in errors]
        print("  " + "; ".join(f"largest {p} error of {kind}: {e[w]:.1e} ({w})" for p, e, w in zip(("fp32", "bf16"), errors, worst)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"which of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where PyTorch's bf16 run is made")
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)), help="folder of the files")
    args = parser.parse_args()
    for name in args.models or MODELS:
        if name not in MODELS:
            parser.error(f"unknown model '{name}'; there are {', '.join(MODELS)}")
        record(name, args.device, args.out)


if __name__ == "__main__":
    main()
