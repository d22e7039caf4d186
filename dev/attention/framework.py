#!/usr/bin/env python3
"""Attention of PyTorch on the GPU at the sizes of the first table: one head of size 16, not causal, fp32.

  dev/attention/framework.py N...     prints CSV: milliseconds a call, of 200 calls back to back; exit code 1 without PyTorch or GPU

torch_eager: S, softmax and P V as three calls; torch_sdpa: scaled_dot_product_attention. Both are bound by what a call
costs the host, which is what the row is about.
"""
import sys
import time

D, CALLS = 16, 200


def seconds_a_call(torch, call):
    """The best of five groups of calls."""
    best = float("inf")
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / CALLS)
    return best


def main():
    if sys.argv[1:2] in (["-h"], ["--help"]):
        return print(__doc__)
    try:
        lengths = [int(text) for text in sys.argv[1:]]
        import torch
    except (ValueError, ImportError) as error:
        print(f"error: framework.py: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    if not torch.cuda.is_available():
        print("error: framework.py: PyTorch sees no CUDA device", file=sys.stderr)
        return 1
    print("kind,op,variant,dtype,T,Tk,ms")
    with torch.inference_mode():
        for n in lengths:
            for queries in (1, n):
                q, k, v = (torch.randn(1, 1, count, D, device="cuda") for count in (queries, n, n))
                calls = {"torch_eager": lambda: torch.softmax(q @ k.transpose(-1, -2) * D**-0.5, -1) @ v,  # noqa: B023
                         "torch_sdpa": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)}  # noqa: B023
                for name, call in calls.items():
                    print(f"time,attention_forward,{name},fp32,{queries},{n},{1e3 * seconds_a_call(torch, call):.6g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
