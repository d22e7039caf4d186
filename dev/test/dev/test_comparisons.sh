#!/bin/sh
# The scripts that measure and compare, as far as a machine without a card can tell: that the checks of compare_attention.py see
# faults, and what tables are made of. Usage: dev/test/dev/test_comparisons.sh, from the repository root.
set -u
test=comparisons
. dev/test/user.sh

# python NAME: runs the program on stdin with scripts/ on its path; status 77: skipped.
python() {
    PYTHONPATH=scripts PYTHONDONTWRITEBYTECODE=1 python3 - >"$work/out" 2>&1
    case $? in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *)
        failed=$((failed + 1))
        echo "FAIL comparisons: $1"
        cat "$work/out"
        ;;
    esac
}

if ! command -v python3 >/dev/null 2>&1; then
    echo 'comparisons: 0 passed, 0 failed, 1 skipped'
    exit 0
fi
export PYTHONDONTWRITEBYTECODE=1
if card_is_missing; then
    command_refuses 'no NVIDIA GPU on this machine; hint: -- --device cpu' python3 scripts/context.py --csv "$work/x.csv" --png "$work/x.png"
    check 'context.py without a card writes nothing' [ ! -e "$work/x.csv" ]
else
    skipped=$((skipped + 1))
fi

python 'a report takes its name when it is closed: an old file of that name stands until then' <<'PY'
import os, tempfile
from comparison import Report
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "x.csv")
    with open(path, "w") as file:
        file.write("old\n")
    report = Report(path, None)
    assert os.listdir(folder) == ["x.csv"], "nothing is begun before there is something to write"
    report.record(a=1)
    assert open(path).read() == "old\n"
    report.close()
    assert open(path, newline="").read() == "a\r\n1\r\n" and os.listdir(folder) == ["x.csv"]
PY

python 'context.py ended by a signal ends its trainer, says nothing and leaves no folder' <<'PY'
import os, signal, subprocess, sys, tempfile, time
with tempfile.TemporaryDirectory() as folder:
    trainer, temporary = os.path.join(folder, "trainer"), os.path.join(folder, "tmp")
    os.mkdir(temporary)
    with open(trainer, "w") as file:
        file.write(f"#!/bin/sh\necho $$ >{folder}/pid\nexec sleep 600\n")
    os.chmod(trainer, 0o755)
    program = f"import context; context.PROGRAM = {trainer!r}; context.end_with(context.main)"
    flags = ["--csv", f"{folder}/x.csv", "--png", f"{folder}/x.png", "--seq", "64", "--", "--device", "cpu"]
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen([sys.executable, "-c", program] + flags, env={**os.environ, "TMPDIR": temporary},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        pid = ""
        while not pid:  # the file is there before the number is in it
            time.sleep(0.05)
            assert process.poll() is None
            if os.path.exists(f"{folder}/pid"):
                pid = open(f"{folder}/pid").read()
        os.unlink(f"{folder}/pid")
        process.send_signal(number)
        said = [line for line in process.communicate()[1].splitlines() if not line.startswith("note: no plot")]
        assert process.returncode == 128 + number and not said, (process.returncode, said)
        assert os.listdir(temporary) == [] and not os.path.exists(f"{folder}/x.csv")
        try:
            os.kill(int(pid), 0)
            raise AssertionError("the trainer is still there")
        except ProcessLookupError:
            pass
PY

python 'judge sees an error of more than twice the peer, a NaN, a head apart, other bits' <<'PY'
from compare_attention import judge
peer = {"out": (1e-3, 1e-2, 1e-6), "dq": (2e-3, 2e-2, 1e-6)}
apart = {"out": 2e-3, "dq": 4e-3}
nan = float("nan")
faults = [{"out": (2.1e-3, 1e-2, 1e-6)}, {"out": (1e-3, 2.1e-2, 1e-3)}, {"dq": (nan, 2e-2, 1e-6)}, {"dq": (2e-3, nan, nan)}]
assert judge([peer, peer], apart, True)[0] == []
assert all(len(judge([{**peer, **fault}, peer], apart, True)[0]) == 1 for fault in faults)
assert judge([{**peer, "out": (1e-3, 2.1e-2, 1e-6)}, peer], apart, True)[0] == [], "the largest error: rounding explains it"
assert len(judge([peer, peer], {**apart, "dq": nan}, True)[0]) == 1
assert len(judge([peer, peer], {**apart, "dq": 7e-3}, True)[0]) == 1
assert len(judge([peer, peer], apart, False)[0]) == 1
better = {name: (rms / 4, *others) for name, (rms, *others) in peer.items()}
assert len(judge([peer, peer, better], apart, True)[0]) == 4, "the best peer counts"
PY

python "context.py ends with the trainer's own words and 2 where the flags are bad, goes on where one run fails" <<'PY'
import contextlib, io, os, tempfile
import context
with tempfile.TemporaryDirectory() as folder:
    context.PROGRAM = os.path.join(folder, "trainer")
    for status in (1, 2):
        with open(context.PROGRAM, "w") as file:
            file.write(f"#!/bin/sh\necho 'error: nothing there' >&2\nexit {status}\n")
        os.chmod(context.PROGRAM, 0o755)
        said, code = io.StringIO(), None
        with contextlib.redirect_stderr(said):
            try:
                assert context.run(64, "gelu", "none", folder, []) is None
            except SystemExit as end:
                code = end.code
        assert code == (2 if status == 2 else None), code
        assert said.getvalue() == "error: T = 64, gelu: nothing there\n", said.getvalue()
PY

python 'the reference is the textbook formula with autograd, in any chunks' <<'PY'
import sys
try:
    import torch
except ImportError:
    sys.exit(77)
from compare_attention import reference
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
PY

python 'what rounding explains: P, dS, the result rounded to bf16, and no more; the largest error of any element counts' <<'PY'
import sys
try:
    import torch
except ImportError:
    sys.exit(77)
from compare_attention import NOISE, TENSORS, errors, reference
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
PY

python 'check_bits sees one bit in one launch, and the sign of a zero' <<'PY'
import sys
try:
    import torch
except ImportError:
    sys.exit(77)
from compare_attention import check_bits
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
PY

command_refuses "expected attention or train, found 'other'" sh scripts/measure.sh other "$work"
command_refuses "/none': no such folder" sh scripts/measure.sh train "$work/none"
command_refuses "expected a folder and two shards" sh scripts/measure_trainer.sh "$work" "$work/none" "$work/none"

python 'context.py: a run that was too short is made again, long enough; what counts comes after a second at load' <<'PY'
from context import SUSTAINED_S, n_sustained, settled
assert n_sustained({"ms": 100.0}, 100) == 0 and n_sustained({"ms": ""}, 100) == 0
assert n_sustained({"ms": 10.0}, 100) * 10.0 >= 1e3 * SUSTAINED_S
steps = [{"ms": 900.0}] + [{"ms": 100.0 + i} for i in range(60)]
assert settled(steps)[0] == 110.0 and len(settled(steps)) == 50
assert settled(steps[:3]) == [100.0, 101.0] and settled([{"ms": 9000.0}, {"ms": 8000.0}]) == [8000.0]
PY

python 'combine.py: medians over runs, the ratio within a run, how many runs hold, a torn last row, a check that failed once' <<'PY'
import contextlib, io, os, tempfile
import combine
from comparison import Report
HEADER = "# card: H, GPU-{}\n# commit: abc\n# torch: 2\nhead_size,mask,T,B,heads,direction,kernel,ms,tflops,slices,error,bits,check\n"
def write(path, card, ours, fa3, cudnn, check, more=""):
    with open(path, "w") as file:
        file.write(HEADER.format(card))
        for kernel, speed in (("ours", ours), ("FA3", fa3), ("cuDNN", cudnn)):
            file.write(f"64,causal,1024,64,24,forward,{kernel},1.0,{speed},2,{'1.03,equal,' + check if check else '-,-,-'}\n")
        file.write(more)
with tempfile.TemporaryDirectory() as folder:
    paths = [os.path.join(folder, f"{i}.csv") for i in range(3)]
    write(paths[0], 0, 110, 100, 50, "ok")
    write(paths[1], 0, 106, 100, 50, "", "64,causal,20")
    write(paths[2], 1, 120, 90, 115, "FAIL")
    runs = combine.read_runs(paths, "tflops")
    cells, checks = combine.attention_cells(runs)
    cell = cells[64, "causal", 1024, "forward"]
    assert cell["ratio"] == [1.1, 1.06, 120 / 115] and cell["FA3"] == [100, 100, 90], cell
    assert checks == {(64, "causal", 1024): ("1.03", "equal", "FAIL")}
    said = combine.attention_verdict(cells, runs)
    assert "3 runs on 2 cards, 3 or more" in said[0] and "median 1 of 1 cells, in every run 0" in said[1] and "1.060 (1.043 to 1.100)" in said[2], said
    out, markdown = io.StringIO(), os.path.join(folder, "x.md")
    with contextlib.redirect_stdout(out):
        report = Report(os.path.join(folder, "x.csv"), markdown)
        report.header(combine.header_of(runs))
        combine.combine_attention(runs, report)
        report.close()
    text = open(markdown).read()
    assert "| 1024 | 110 (106 to 120) | 100 (90 to 100) | 50 (50 to 115) | - | 1.060 (1.043 to 1.100) | yes | 3 | 1.03 | equal | FAIL |" in text, text
    assert "GPU-0" in text and "GPU-1" in text and "- commit: abc" in text
    with open(paths[1]) as file:
        other = file.read().replace("abc", "def")
    with open(paths[1], "w") as file:
        file.write(other)
    with contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        combine.read_runs(paths, "tflops")
        raise AssertionError("runs of two commits are in one table")
    assert "1.csv: commit: expected abc" in out.getvalue()
PY

python "compare_train.py: every way has a turn, the fastest takes turns with ours, a failure is in the table, others are ended" <<'PY'
import contextlib, io, json, os, stat, sys, tempfile
import compare_train
from compare_train import Ahead, Configuration, Turns, compare, parse_arguments
from combine import combine_train
from comparison import Report
PEER = """
import json, os, sys
way = "/".join(sys.stdin.readline().split())
with open(os.environ["ORDER"], "a") as file:
    file.write(way + " compiles\\n")
if way == "cudnn/max-autotune":
    sys.exit("torch.AcceleratorError: out of memory\\nCUDA kernel errors might be reported later")
print(json.dumps({"compiled_s": 1}), flush=True)
ms = {"cudnn/default": 20, "flash3/default": 12}.get(way, 15)
for line in sys.stdin:
    with open(os.environ["ORDER"], "a") as file:
        file.write(way + "\\n")
    print(json.dumps({"steps": 10, "seconds": ms / 100, "loss": 10.8, "memory": 4 << 30, "reserved": 6 << 30}), flush=True)
"""
OURS = """#!/bin/sh
echo ours >>"$ORDER"
while [ $# -gt 0 ]; do case $1 in --out) out=$2 ;; --steps) steps=$2 ;; esac; shift; done
mkdir -p "$out"
i=0
while [ $i -lt 8 ]; do i=$((i + 1)); echo "{\\"step\\": $i, \\"ms\\": 500.0, \\"loss\\": 10.82, \\"mfu\\": 0.5}"; done >"$out/log.jsonl"
echo 'memory: planned 1.0 GiB, measured 2.0 GiB'
"""
with tempfile.TemporaryDirectory() as folder:
    compare_train.PEER, program = os.path.join(folder, "peer.py"), os.path.join(folder, "ours")
    order = os.environ["ORDER"] = os.path.join(folder, "order")
    for path, text in ((compare_train.PEER, PEER), (program, OURS)):
        with open(path, "w") as file:
            file.write(text)
    os.chmod(program, 0o755)
    arguments = parse_arguments(["--only", "d12:4x1024", "--seconds", "1", "--program", program])
    configuration = arguments.only[0]._replace(ways=[("cudnn", "default"), ("flash3", "default"), ("cudnn", "max-autotune"), ("best", "reduce-overhead")])
    ahead = Ahead([configuration] * 4, "shard", 20)
    markdown, out = os.path.join(folder, "x.md"), io.StringIO()
    with contextlib.redirect_stdout(out):
        report = Report(os.path.join(folder, "x.csv"), markdown)
        turns = Turns(report)
        compare(configuration, ahead, "shard", arguments, folder, turns)
        assert combine_train(turns.rows, report)
        report.close()
    assert open(order).read().split("\n") == [
        "cudnn/default compiles", "cudnn/default", "flash3/default compiles", "flash3/default", "cudnn/max-autotune compiles",
        "flash3/reduce-overhead compiles", "flash3/reduce-overhead", "ours", "flash3/default", "ours", "flash3/default", "ours", ""]
    text = open(markdown).read()
    assert "| d12:4x1024 | 8,192 (8,192 to 8,192) | 500.00 (500.00 to 500.00) | 7 | 341,333 (341,333 to 341,333) | flash3, default | 204,800 | 341,333 | 0.02 | 2.0 / 4.0 | no >=1.50 |" in text, text
    assert "| d12:4x1024 | cudnn, max-autotune | - | 0 | 0 | - | - | - | torch.AcceleratorError: out of memory |" in text, text
    assert "| d12:4x1024 | flash3, reduce-overhead | 273,067 | 1 | 0 | 1 | 6.0 |" in text, "with CUDA graphs what it held"
    rows = [dict(turns.rows[0]), dict(turns.rows[-1])]
    rows[0]["loss"] = "9.0"
    with contextlib.redirect_stdout(out):
        report = Report(None, None)
        combine_train(rows, report)
    assert "losses 1.82 apart" in out.getvalue()
PY

python 'compare_train.py: our steps last long enough, the FLOP are those of products; turns apart from ours are left out' <<'PY'
import os, tempfile
from cases import flop_of_token
from combine import beside_ours, Run, train_summary, train_verdict
from comparison import commit
from compare_train import Configuration, n_steps
assert flop_of_token("d12", 1024) == 6 * (12 * (3 + 1 + 4 + 4) * 768**2 + 50257 * 768) + 12 * 12 * 768 * 512
long = Configuration("d12", 1, 131072, [])
assert n_steps(long, 5, [{"ms": 2100.0}]) == 1 + 1 + 3 and n_steps(long, 5, [{"ms": 100.0}]) == 1 + 10 + 50
assert n_steps(long, 5, [{"ms": 9000.0}]) == 1 + 1 + 2
assert n_steps(long, 5, []) == n_steps(long, 5, [{"ms": 1e3 * 131072 * flop_of_token("d12", 131072) / 620e12}])
def row(program, way, ms="1"):
    return {"configuration": "d12:1x8", "program": program, "attention": way, "mode": "default", "ms": ms}
with_ours = Run("a", {}, [row("torch", "flash3"), row("train_gpt2cu", "")])
apart = Run("b", {}, [row("torch", "flash3"), row("torch", "cudnn"), row("torch", "best", "")])
assert beside_ours([apart, with_ours]) == apart.rows[1:] + with_ours.rows
assert beside_ours([apart]) == apart.rows
cells = [train_verdict("d12:1x65536", *result, 0.0) for result in ((1.4, 0.6), (1.4, 0.8), (1.2, 0.6))]
assert cells == ["yes >=1.30 <=0.7", "no >=1.30 <=0.7", "no >=1.30 <=0.7"], cells
def turn(ms, gib):
    return {"ms": ms, "tok_s": "1", "used_gib": gib, "loss": "10.8", "flags": ""}
assert train_summary("d12:1x65536", {"ours": [turn("1", "6")], "flash3, default": [turn("1.4", "10")]})[-4:-1] == ["1.40", "6.0 / 10.0", "yes >=1.30 <=0.7"]
with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "commit"), "w") as file:
        file.write("abc1234\n")
    assert commit(folder) == "abc1234", "the commit of what was measured, where it is noted"
PY

python 'FlashAttention-3 as an operator: its fake and its gradient are as the real ones, packed' <<'PY'
import sys
try:
    import torch
except ImportError:
    sys.exit(77)
from attention_kernels import flash3_packed
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
PY
finish
