#!/usr/bin/env python3
"""Compares greedy generation by ./train_gpt2cu and by transformers (static cache, torch.compile) on the same card, model and
number of tokens: tokens/s, time a token, and how much of the text is the same.

    make train_gpt2cu && scripts/compare_generation.py                # GPT-2 124M, random weights, bf16; 3 minutes
    scripts/compare_generation.py --model out/124M/step_00019073 --batches 1,8,64 --tokens 512 --markdown generation.md

Both begin with one token, end-of-text, and draw --tokens more in each of --batches sequences; so the mean context is half of
--tokens. After the compilation they take turns, one timed generation each, until both have --turns. Our time is that of the
steps behind the first token, theirs that of the whole call of generate(), whose prompt is a single token. Texts part early
where weights are random: logits are close to each other, and the two round differently in bf16. --precision fp32 shows that
they are the same."""
import argparse
import os
import re
import statistics
import sys
import tempfile
import time

import random_shard
from comparison import (EXIT_RUN, Parser, Report, commit_of, end_with, environment, fail, integer, integers, need_program, run_program,
                        torch_on_card, version_of)

END_OF_TEXT = 50256
LIMIT_S = 300  # a process of ours that takes longer is stopped
MODEL = "d12"  # where no --model is given


def run(program, flags):
    """What ours prints, (stdout, stderr); ends the program where it fails."""
    done, failure = run_program([program, *flags], LIMIT_S)
    if not done:
        fail(f"{program}: {failure}", EXIT_RUN)
    return done.stdout, done.stderr


def random_model(program, work):
    """The folder of a model of GPT-2's size after one step on random tokens."""
    shard, out = random_shard.given_or_random(None, work), os.path.join(work, "model")
    run(program, ["--model", MODEL, "--train", shard, "--batch", "4", "--seq", "1024", "--tokens-per-step", "4096", "--steps", "1",
                  "--sample-tokens", "0", "--eval-every", "0", "--model-only", "--out", out])
    return os.path.join(out, "step_00000001")


def ours(program, model, batch, arguments):
    """(tokens/s, percent of the memory's bandwidth, the first sequence's tokens)."""
    out, said = run(program, ["--model", model, "--prompt", "", "--samples", str(batch), "--sample-tokens", str(arguments.tokens),
                              "--temperature", "0", "--precision", arguments.precision])
    rate = re.search(r"^sampled .*, (\d+) tokens/s, (\d+) % of the memory bandwidth", said, re.MULTILINE)
    if not rate:
        fail(f"{program}: no tokens/s in what it said", EXIT_RUN)
    return int(rate[1]), int(rate[2]), [int(token) for token in out.partition("---")[0].split()]


class Peer:
    """transformers' GPT-2 with its static cache; the step is compiled at the first call of a batch."""

    def __init__(self, torch, folder, precision):
        from transformers import GPT2LMHeadModel  # slow to import
        self.torch = torch
        self.model = GPT2LMHeadModel.from_pretrained(folder, dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[precision])
        self.model = self.model.to("cuda").eval()
        self.model.generation_config.eos_token_id = None  # no sequence ends early
        self.model.generation_config.pad_token_id = END_OF_TEXT

    def generate(self, batch, tokens):
        """(tokens/s, the first sequence's tokens)."""
        start = self.torch.full((batch, 1), END_OF_TEXT, device="cuda")
        self.torch.cuda.synchronize()
        began = time.perf_counter()
        with self.torch.no_grad():
            drawn = self.model.generate(start, attention_mask=self.torch.ones_like(start), max_new_tokens=tokens, do_sample=False,
                                        cache_implementation="static")
        self.torch.cuda.synchronize()
        return batch * tokens / (time.perf_counter() - began), drawn[0, 1:].tolist()


def common(ours_tokens, theirs):
    """How many tokens the two texts have in common before they part."""
    same = [a == b for a, b in zip(ours_tokens, theirs)]
    return same.index(False) if False in same else len(same)


def compare(program, model, peer, batch, arguments, report):
    began = time.perf_counter()
    peer.generate(batch, arguments.tokens)
    peer.generate(batch, arguments.tokens)
    compiled_s = time.perf_counter() - began
    rates = {"ours": [], "transformers": []}
    for _ in range(arguments.turns):
        rate, percent, own = ours(program, model, batch, arguments)
        rates["ours"].append(rate)
        rate, theirs = peer.generate(batch, arguments.tokens)
        rates["transformers"].append(rate)
    same = common(own, theirs)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, found in rates.items():
        report.record(batch=batch, tokens=arguments.tokens, precision=arguments.precision, program=name, tok_s=f"{medians[name]:.0f}",
                      least=f"{min(found):.0f}", most=f"{max(found):.0f}", us_a_step=f"{1e6 * batch / medians[name]:.1f}",
                      same_tokens=same, percent_of_bandwidth=percent if name == "ours" else "",
                      compile_s=f"{compiled_s:.0f}" if name == "transformers" else "")
    report.row([f"{batch}", f"{arguments.tokens}", f"{medians['ours']:,.0f}", f"{1e6 * batch / medians['ours']:.1f}", f"{percent} %",
                f"{medians['transformers']:,.0f}", f"{1e6 * batch / medians['transformers']:.1f}",
                f"{medians['ours'] / medians['transformers']:.2f}", f"{same}"])


def parse_arguments(argv):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="FOLDER", help=f"that transformers reads; default: {MODEL} after one step on random tokens")
    parser.add_argument("--batches", type=integers(1, 64), default=[1, 64], metavar="LIST", help="sequences at once (default 1,64)")
    parser.add_argument("--tokens", type=integer(2, 1023), default=512, metavar="N", help="drawn in each (default 512)")
    parser.add_argument("--turns", type=integer(1, 100), default=3, metavar="N", help="of each program (default 3)")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16", help="of weights and activations (default bf16)")
    parser.add_argument("--program", default="./train_gpt2cu", metavar="FILE", help="ours (default ./train_gpt2cu)")
    parser.add_argument("--device", type=integer(0, 63), metavar="N", help="the card's number (default: the first that is visible)")
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    return parser.parse_args(argv)


def main():
    arguments = parse_arguments(sys.argv[1:])
    program = os.path.abspath(arguments.program)
    need_program(arguments.program)
    if arguments.model and not os.path.isfile(os.path.join(arguments.model, "config.json")):
        fail(f"--model: a folder with config.json, as transformers reads it, expected: {arguments.model}; hint: --export, or leave it out")
    report = Report(arguments.csv, arguments.markdown)
    torch = torch_on_card(arguments.device)
    report.header(environment(torch, commit_of(program)) + [("peer", version_of(["transformers"]))])
    with tempfile.TemporaryDirectory() as work:
        model = os.path.abspath(arguments.model) if arguments.model else random_model(program, work)
        peer = Peer(torch, model, arguments.precision)
        report.table(f"Greedy generation, {arguments.model or MODEL}, {arguments.precision}, from one token: us are of a step of all sequences",
                     ["batch", "tokens", "   ours, tokens/s", "us a step", "of bandwidth", "transformers, tokens/s", "us a step", "ratio",
                      "the same tokens"])
        for batch in arguments.batches:
            compare(program, model, peer, batch, arguments, report)
    report.close()
    return 0


if __name__ == "__main__":
    end_with(main)
