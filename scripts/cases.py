"""What the comparisons train: GPT-2's sizes, and cases of them, a model and the micro-batch of one GPU, written MODEL:BxT, or
MODEL:BxT/TOKENS with the tokens of a step over all GPUs, which gradient accumulation brings."""
import argparse
import collections
import re

# As llmc/model/gpt2_config.c has them: layers, heads, channels.
MODELS = {"d6": (6, 6, 384), "d12": (12, 12, 768), "d24": (24, 16, 1024), "d36": (36, 20, 1280), "d48": (48, 25, 1600),
          "d60": (60, 30, 1920), "d72": (72, 30, 2880), "d84": (84, 36, 3456)}
VOCABULARY, PADDED_VOCABULARY = 50257, 50304

# tokens: of a step over all GPUs; 0: one micro-step on each GPU.
Case = collections.namedtuple("Case", "model B T tokens", defaults=(0,))


def name_of(case):
    return f"{case.model}:{case.B}x{case.T}" + (f"/{case.tokens}" if case.tokens else "")


def case_of(name):
    """The case of a name; None where it is no case's."""
    match = re.fullmatch(r"(d\d+):(\d{1,6})x(\d{1,7})", name)
    if not match or match[1] not in MODELS or 0 in (int(match[2]), int(match[3])):
        return None
    return Case(match[1], int(match[2]), int(match[3]))


def named_case(text):
    """The type of a flag that takes a case by its name."""
    found = case_of(text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected MODEL:BxT, such as d12:64x1024, with a model of {', '.join(MODELS)}; found {text!r}")
    return found


def step_of(name):
    """The case of a name, with /TOKENS or without; None where it is no case's."""
    name, slash, tokens = name.partition("/")
    found = case_of(name)
    if not found or not slash:
        return found
    return found._replace(tokens=int(tokens)) if re.fullmatch(r"[1-9]\d{0,11}", tokens) else None


def named_step(text):
    """The type of a flag that takes a case with its step."""
    found = step_of(text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected MODEL:BxT or MODEL:BxT/TOKENS, such as d12:64x1024/524288, with a model of {', '.join(MODELS)}; found {text!r}")
    return found


def tokens_of(case, gpus):
    """Of a step over all GPUs."""
    return case.tokens or case.B * case.T * gpus


def micro_steps_of(case, gpus):
    """Of one GPU in a step; None where its tokens cannot be shared out so."""
    micro, rest = divmod(tokens_of(case, gpus), case.B * case.T * gpus)
    return None if rest else micro


def flop(model, T):
    """FLOP (of the head, of a layer) of a training step for one token: 6 a weight of the matrix products, and causal attention. No
    embedding, no biases."""
    _, _, C = MODELS[model]
    return 6 * VOCABULARY * C, 6 * (12 * C**2 + C * T)


def flop_of_token(model, T):
    """Of head and layers together."""
    head, layer = flop(model, T)
    return head + MODELS[model][0] * layer
