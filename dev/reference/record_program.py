#!/usr/bin/env python3
"""Records what PyTorch computes for whole runs of the program, flag by flag, for test_program.c to hold ./train_gpt2 to.

    python3 dev/reference/record_program.py            # writes program.ref, program.txt, program_nan.txt beside itself

Each run is a small GPT-2 (record.py's, from hashed weights) trained on program.txt in float64 with torch.optim.AdamW, or Muon for the matrices of the blocks: the
order of the data, the schedule, accumulation, clipping, dropout's masks and validation are written out here a second
time, from the README alone. program.ref is text: of each run its flags, then loss, learning rate, gradient norm and
skipped steps of every step, and the validation losses. Needs PyTorch alone; half a minute on one core.
"""
import math
import os

from record import (GOLDEN, MASK64, Dropout, Model, forward, initial_weights, mix64, optimizers, random_stream,
                    torch)

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = Model(2, 2, 32, 32, 256, 0, 0, 0, -2, 0) # two layers and heads, 32 channels, context 32, bytes as tokens
BASE = {"train": "program.txt", "batch": 2, "seq": 16, "tokens-per-step": 32, "steps": 6, "lr": 0.005, "warmup": 0,
        "final-lr-fraction": 0.1, "schedule": "constant", "weight-decay": 0.0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
        "dropout": 0.0, "clip": 0.0, "seed": 7, "window": 0, "eval-every": 2, "eval-batches": 2}
MUON = {"optimizer": "muon", "momentum": 0.95, "muon-polynomial": "polar-express"}
# To add a run: a row, then run this script. Keys are the program's flags, without dashes; what is not named is BASE's.
RUNS = {
    "plain": {},
    "accumulate": {"tokens-per-step": 96},
    "batch": {"batch": 3, "seq": 24, "tokens-per-step": 144},
    "lr": {"lr": 0.001},
    "warmup": {"warmup": 4},
    "cosine": {"schedule": "cosine", "warmup": 2, "steps": 8},
    "cosine to 0.4": {"schedule": "cosine", "final-lr-fraction": 0.4},
    "linear": {"schedule": "linear", "warmup": 1, "final-lr-fraction": 0.2},
    "wsd": {"schedule": "wsd", "warmup": 2, "steps": 10},
    "weight decay": {"weight-decay": 3.0},
    "beta1": {"beta1": 0.5},
    "beta2": {"beta2": 0.6},
    "eps": {"eps": 0.03},
    "clip": {"clip": 0.25},
    "clip above the norm": {"clip": 1000.0},
    "muon": {**MUON, "steps": 10},
    "muon, weight decay": {**MUON, "weight-decay": 3.0},
    "muon, momentum": {**MUON, "momentum": 0.6},
    "muon, jordan": {**MUON, "muon-polynomial": "jordan"},
    "muon, clip": {**MUON, "clip": 0.25, "beta1": 0.8, "tokens-per-step": 96, "warmup": 2},
    "muon, skipped steps": {"train": "program_nan.txt", **MUON, "weight-decay": 0.1, "steps": 8, "eval-every": 4},
    "seed": {"seed": 8},
    "second epoch": {"batch": 24, "tokens-per-step": 384, "steps": 9, "eval-batches": 3},
    "window": {"window": 5},
    "dropout": {"dropout": 0.2},
    "dropout, accumulate": {"dropout": 0.3, "tokens-per-step": 96, "seed": 9},
    "overfit": {"overfit": True, "tokens-per-step": 64, "steps": 4},
    "everything": {"batch": 3, "seq": 24, "tokens-per-step": 144, "schedule": "cosine", "warmup": 2, "steps": 7,
                   "weight-decay": 0.5, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "dropout": 0.1, "clip": 1.5, "seed": 123,
                   "window": 9, "eval-every": 3, "eval-batches": 4},
    "skipped steps": {"train": "program_nan.txt", "weight-decay": 0.1, "steps": 8, "eval-every": 4},
}
BAD_STEPS = (2, 3, 5, 6) # of "skipped steps": never three in a row, which would end the run
POISON = "Z"             # its embedding, in the model of that run, overflows fp32
STREAM_ORDER, STREAM_OFFSET = 0x6F72646572, 0x6F6666736574
N_BYTES = 3000


def text():
    """Letters of which the next can be learnt from the last two, with some noise and lines."""
    out, a, b = [], 3, 5
    for i in range(N_BYTES):
        noise = mix64(GOLDEN * (i + 1) & MASK64) % 11
        a, b = b, (a + 2 * b + (noise if noise < 3 else 0)) % 26
        out.append("\n" if i % 50 == 49 else chr(97 + b))
    return "".join(out)


# ---- the order of the data ----

def permuted(index, n, key):
    """A Feistel network of six rounds over 2 h bits, the least with 4^h >= n, walked until it falls below n."""
    h = next(h for h in range(1, 32) if 4**h >= n)
    mask = 2**h - 1
    while True:
        left, right = index >> h, index & mask
        for r in range(6):
            left, right = right, left ^ (mix64(mix64((key + r) & MASK64) ^ right) & mask)
        index = left << h | right
        if index < n:
            return index


def window(data, position, seq, seed):
    """Tokens and targets of the window at this place of a run; seed None: in the order of the text."""
    n = (len(data) - 1) // seq
    epoch, index = divmod(position, n)
    if seed is None:
        start = index * seq
    else:
        offset = random_stream(random_stream(seed, STREAM_OFFSET), epoch) % seq if epoch else 0
        start = permuted(index, n, random_stream(random_stream(seed, STREAM_ORDER), epoch)) * seq + offset
    return [data[(start + i) % len(data)] for i in range(seq + 1)]


def batch(data, position, run, seed):
    rows = torch.tensor([window(data, position + b, run["seq"], seed) for b in range(run["batch"])])
    return rows[:, :-1], rows[:, 1:]


# ---- one run ----

def learning_rate(run, step):
    """Of step `step`, counted from 1."""
    s, n, w, top = step - 1, run["steps"], run["warmup"], run["lr"]
    low, done = run["final-lr-fraction"] * top, (s - w) / max(n - w, 1)
    if s < w:
        return top * step / w
    return {"constant": lambda: top,
            "cosine": lambda: low + (top - low) * (1 + math.cos(math.pi * done)) / 2,
            "linear": lambda: top + (low - top) * done,
            "wsd": lambda: top if s < 0.8 * n else low + (top - low) * (1 - math.sqrt((s / n - 0.8) / 0.2))}[run["schedule"]]()


def start(run):
    weights = {name: w.double() for name, w in initial_weights(MODEL).items()}
    if run["train"] == "program_nan.txt": # its logit is -inf in fp32, whatever the position: no other byte sees it
        weights["wte.weight"][ord(POISON), :2] = 3e38
        weights["ln_f.weight"][:2], weights["ln_f.bias"][:2] = 0.0, -1.0
    return {name: w.clone().requires_grad_() for name, w in weights.items()}


def validate(model, weights, data, run):
    none = Dropout(0, 0)
    with torch.no_grad():
        losses = [forward(model, weights, *batch(data, i * run["batch"], run, None), none)[0].item()
                  for i in range(run["eval-batches"])]
    return sum(losses) / len(losses)


def train(run, data):
    """Yields the lines of the run."""
    model, weights = MODEL._replace(window=run["window"]), start(run)
    border = len(data) * 9 // 10
    train_data, val_data = data[:border], data[border:]
    muon = {**MUON, "optimizer": "adamw", **run}
    updating = optimizers(weights, muon["optimizer"], run["weight-decay"], muon["momentum"], muon["muon-polynomial"],
                          betas=(run["beta1"], run["beta2"]), eps=run["eps"])
    n_micro, position, skipped, updates = run["tokens-per-step"] // (run["batch"] * run["seq"]), 0, 0, 0
    for step in range(1, run["steps"] + 1):
        for optimizer in updating:
            optimizer.zero_grad()
        total, bad = 0.0, False
        for micro in range(n_micro):
            tokens, targets = batch(train_data, 0 if run.get("overfit") else position, run, run["seed"])
            position += run["batch"]
            loss, _ = forward(model, weights, tokens, targets, Dropout(run["dropout"], step, micro, run["seed"]))
            (loss / n_micro).backward()
            total += loss.item() / n_micro
            bad |= bool((tokens == ord(POISON)).any() or (targets == ord(POISON)).any())
        lr, norm = learning_rate(run, step), math.sqrt(sum(float(w.grad.square().sum()) for w in weights.values()))
        if bad:
            skipped += 1
            yield f"step {step} nan {lr:.12g} nan {skipped}"
        else:
            updates += 1
            for w in weights.values():
                w.grad *= min(1.0, run["clip"] / norm) if run["clip"] else 1.0
            for optimizer in updating:
                for group in optimizer.param_groups:
                    group["lr"] = lr
                optimizer.step()
            yield f"step {step} {total:.9g} {lr:.12g} {norm:.9g} {skipped}"
        if step % run["eval-every"] == 0 or step == run["steps"]:
            yield f"val {step} {validate(model, weights, val_data, run):.9g}"


def poisoned(plain):
    """The text with one letter changed in the first window of each of BAD_STEPS."""
    run, letters = {**BASE, **RUNS["skipped steps"]}, list(plain)
    train_data = list(range(len(plain) * 9 // 10)) # of places, not letters
    for step in BAD_STEPS:
        places = window(train_data, (step - 1) * run["batch"], run["seq"], run["seed"])
        letters[places[5]] = POISON
    return "".join(letters)


def flags(run):
    """As the program takes them; the folder of --train is the test's to add."""
    return " ".join(f"--{key}" if value is True else f"--{key} {value:.12g}" if isinstance(value, float) else f"--{key} {value}"
                    for key, value in run.items())


def main():
    texts = {"program.txt": text()}
    texts["program_nan.txt"] = poisoned(texts["program.txt"])
    for name, content in texts.items():
        with open(os.path.join(HERE, name), "w") as f:
            f.write(content)
    with open(os.path.join(HERE, "program.ref"), "w") as f:
        f.write(f"# record_program.py, torch {torch.__version__}, float64: step, loss, learning rate, norm, skipped; val: step, loss\n")
        for name, changes in RUNS.items():
            run = {**BASE, **changes}
            f.write(f"run {name.replace(' ', '_')}\nflags {flags(run)}\n")
            for line in train(run, texts[run["train"]].encode()):
                f.write(line + "\n")
            print(name, line, flush=True)


if __name__ == "__main__":
    main()
