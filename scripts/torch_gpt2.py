#!/usr/bin/env python3
"""The peer of compare_train.py: GPT-2 as a PyTorch user trains it, with torch.compile, bf16 autocast, fused AdamW and
PyTorch's attention kernels. Speed only: constant learning rate, no evaluation, no checkpoints.

    (echo cudnn default; echo 10) | scripts/torch_gpt2.py --model d12 --batch 64 --seq 1024 --tokens data/train.bin

Reads standard input: the first line names the attention (cudnn, flash, flash3) and the mode of torch.compile; it takes the
card, compiles and prints one line of JSON; then for every line, a number of seconds and, if it is not one, the micro-steps of a step,
trains about so long and prints another: steps, seconds, median milliseconds, loss, peak memory in bytes. Ends with its input. flash3: FlashAttention-3 of the
package flash_attn_3 or xformers as an operator of its own, held to PyTorch's attention once before it is used; its backward
adds dQ by atomics, and it has no dropout. --dropout P drops where ./train_gpt2cu does.

With torchrun's variables (WORLD_SIZE above 1) it is one rank of DistributedDataParallel over NCCL: every rank reads the same
lines, each trains on batches of its own, and --bucket-mb sets how many gradients one all-reduce takes. Only the last micro-step
of a step reduces.
"""
import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import time

from attention_kernels import flash3_packed, load_flash3
from cases import MODELS, PADDED_VOCABULARY
from comparison import Parser, import_torch, number
from random_shard import HEADER_BYTES, N_TOKENS

torch = import_torch()
from torch import nn  # noqa: E402  after the words about a missing PyTorch
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "flash3": SDPBackend.MATH}  # flash3: unused
DEVICE = "cuda"
N_RANKS = int(os.environ.get("WORLD_SIZE", "1"))
WARM_UP_S = 1.0  # at load before the timed steps: a card at its power limit slows down within 0.1 s


def sdpa(qkv, dropout=0.0):
    """(B,T,3,H,D) -> (B,T,H,D): PyTorch's attention, causal. dropout: of the probabilities."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True).transpose(1, 2)


def attention_kernel(name, dropout=0.0):
    """Of an attention's name."""
    if name != "flash3":
        return (lambda qkv: sdpa(qkv, dropout)) if dropout else sdpa
    if dropout:
        sys.exit("error: flash3: has no dropout; hint: cudnn or flash")
    library = load_flash3(torch)
    if not library:
        sys.exit("error: flash3: neither the package flash_attn_3 nor xformers is installed")
    kernel = flash3_packed(torch, library)
    check_kernel(kernel)
    return kernel


def check_kernel(kernel):
    """Ends the program unless its output and gradient are PyTorch's within what bf16 leaves."""
    torch.manual_seed(1)
    qkv = torch.randn(2, 320, 3, 4, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    dout = torch.randn(2, 320, 4, 64, device=DEVICE, dtype=torch.bfloat16)
    results = [(out.detach(), *torch.autograd.grad(out, qkv, dout)) for out in (kernel(qkv), sdpa(qkv))]
    for mine, theirs in zip(*results):
        error = ((mine - theirs).float().norm() / theirs.float().norm()).item()
        if not error < 0.02:
            sys.exit(f"error: flash3: {error:.3g} apart from PyTorch's attention")


def dropped(x, dropout):
    """With dropout; without one, x itself."""
    return F.dropout(x, dropout) if dropout else x


class Attention(nn.Module):
    """(B,T,C) -> (B,T,C), causal. kernel: of the attention itself, qkv (B,T,3,H,D) -> (B,T,H,D)."""

    def __init__(self, heads, C, kernel):
        super().__init__()
        self.heads, self.kernel = heads, kernel
        self.qkv = nn.Linear(C, 3 * C)
        self.projection = nn.Linear(C, C)

    def forward(self, x):
        B, T, C = x.shape
        out = self.kernel(self.qkv(x).view(B, T, 3, self.heads, C // self.heads))
        return self.projection(out.reshape(B, T, C))


class Layer(nn.Module):
    """(B,T,C) -> (B,T,C): pre-norm attention and MLP, each added to the residual. dropout: of what each adds."""

    def __init__(self, heads, C, kernel, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.norm1, self.attention = nn.LayerNorm(C), Attention(heads, C, kernel)
        self.norm2 = nn.LayerNorm(C)
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(approximate="tanh"), nn.Linear(4 * C, C))

    def forward(self, x):
        x = x + dropped(self.attention(self.norm1(x)), self.dropout)
        return x + dropped(self.mlp(self.norm2(x)), self.dropout)


class GPT2(nn.Module):
    """Tokens and targets (B,T) -> mean loss; the head shares the token embedding's weight. dropout: of the embedding and of each layer; the
    kernel has its own."""

    def __init__(self, layers, heads, C, max_T, kernel=sdpa, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.tokens, self.positions = nn.Embedding(PADDED_VOCABULARY, C), nn.Embedding(max_T, C)
        self.layers = nn.ModuleList(Layer(heads, C, kernel, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(C)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("projection.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if residual else 0.02)

    def forward(self, tokens, targets):
        x = dropped(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]], self.dropout)
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def read_batches(path, B, T):
    """The shard as pairs (tokens, targets) of (B,T) on the device. All of it, lest the model learns it by heart."""
    with open(path, "rb") as file:
        file.seek(HEADER_BYTES)
        data = bytearray(file.read(2 * N_TOKENS))  # of a larger one no more than a random one has
    tokens = torch.frombuffer(data, dtype=torch.int16).to(torch.int64).bitwise_and_(0xFFFF)
    n = (len(tokens) - 1) // (B * T)
    if n == 0:
        sys.exit(f"error: {path}: expected more than {B * T} tokens, found {len(tokens)}")
    begins = range(0, n * B * T, B * T)
    return [tuple(tokens[i : i + B * T].view(B, T).to(DEVICE) for i in (begin, begin + 1)) for begin in begins]


def join_ranks():
    """This process takes its card and meets the others; its rank."""
    if N_RANKS == 1:
        return 0
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    return torch.distributed.get_rank()


def slowest(step_s):
    """Over ranks, which must all train as many steps."""
    if N_RANKS == 1:
        return step_s
    seconds = torch.tensor([step_s], device=DEVICE)
    torch.distributed.all_reduce(seconds, torch.distributed.ReduceOp.MAX)
    return seconds.item()


def over_ranks(model, bucket_mb):
    """The model whose backward also takes the mean of gradients over ranks. torch.compile() takes it apart at the borders of buckets,
    so that the all-reduce of one runs beside the backward pass of the next."""
    if N_RANKS == 1:
        return model
    return nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], bucket_cap_mb=bucket_mb,
                                               gradient_as_bucket_view=True, static_graph=True)


def make_step(arguments, attention, mode):
    """A function that trains one step of micro-batches [(tokens, targets), ...] and returns the last one's loss."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(DEVICE):
        kernel = attention_kernel(attention, arguments.dropout)
        model = GPT2(*MODELS[arguments.model], arguments.seq, kernel, arguments.dropout)
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    ranks = over_ranks(model, arguments.bucket_mb)
    compiled = torch.compile(ranks, dynamic=False, mode=None if mode == "default" else mode)

    def backward_pass(tokens, targets, share):
        """Adds the gradients of `share` of the loss, which it returns whole."""
        torch.compiler.cudagraph_mark_step_begin()  # the last micro-step's results may go
        with torch.autocast(DEVICE, torch.bfloat16), sdpa_kernel(BACKENDS[attention]):
            loss = compiled(tokens, targets)
        (loss if share == 1 else share * loss).backward()
        return loss.detach()

    def step(micro_batches):
        *others, last = micro_batches
        for batch in others:
            with ranks.no_sync() if N_RANKS > 1 else contextlib.nullcontext():
                backward_pass(*batch, 1 / len(micro_batches))
        loss = backward_pass(*last, 1 / len(micro_batches))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def batches_of(batches, i, micro_steps):
    """Those of step i: all in turn."""
    return [batches[n % len(batches)] for n in range(i * micro_steps, (i + 1) * micro_steps)]


def train(step, batches, seconds, step_s, micro_steps=1):
    """Trains WARM_UP_S, then `seconds` that are timed, a little more since step_s, of one step, is rough."""
    step_s = slowest(step_s)
    n_warm, n = max(1, round(WARM_UP_S / step_s)), max(2, math.ceil(1.06 * seconds / step_s))
    for i in range(n_warm):
        step(batches_of(batches, i, micro_steps))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    began = time.monotonic()
    marks[0].record()
    for i in range(n):
        loss = step(batches_of(batches, i, micro_steps))
        marks[i + 1].record()
    torch.cuda.synchronize()
    took = time.monotonic() - began
    steps_ms = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
    return {"steps": n, "seconds": took, "ms_median": statistics.median(steps_ms), "loss": loss.item(),
            "memory": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--tokens", required=True, metavar="FILE", help="a token shard (header of 1024 bytes, then uint16)")
    parser.add_argument("--dropout", type=number(0, 0.99), default=0.0, metavar="P",
                        help="of the embedding, attention's probabilities and the output of attention and MLP (default 0: none)")
    parser.add_argument("--bucket-mb", type=float, default=25, metavar="N", help="of gradients in one all-reduce (default 25, PyTorch's own)")
    arguments = parser.parse_args()
    way = sys.stdin.readline().split()
    if not way:
        return
    if len(way) != 2 or way[0] not in BACKENDS:
        sys.exit(f"error: expected one of {', '.join(BACKENDS)} and a mode, found {' '.join(way)!r}")
    began = time.monotonic()
    rank, batches = join_ranks(), read_batches(arguments.tokens, arguments.batch, arguments.seq)
    batches = batches[rank:] + batches[:rank]  # each rank begins with another one
    step = make_step(arguments, *way)
    for i in range(5):  # compiles, warms up, records a graph where the mode has them, and two that are like the others
        if i == 3:
            torch.cuda.synchronize()
            warm = time.monotonic()
        step(batches_of(batches, i, 1))
    torch.cuda.synchronize()
    micro_step_s = (time.monotonic() - warm) / 2
    torch.cuda.empty_cache()  # leaves the device's memory to whoever runs next
    print(json.dumps({"compiled_s": warm - began, "step_s": micro_step_s}), flush=True)
    for line in sys.stdin:
        seconds, *more = line.split()
        micro_steps = int(more[0]) if more else 1
        result = train(step, batches, float(seconds), micro_step_s * micro_steps, micro_steps)
        micro_step_s = result["seconds"] / result["steps"] / micro_steps
        torch.cuda.empty_cache()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
