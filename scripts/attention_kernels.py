"""The attention kernels that compare_attention.py sets beside each other: this project's, and PyTorch's.

Each has a name and prepare(case, inputs) -> State (RuntimeError: this case is not served), forward(state) and
backward(state), which only queue work on the current stream, and results(state): {TENSORS: (B,H,T,D), lse (B,H,T)},
None for what a kernel does not give. inputs: qkv (B,T,3,H,D) and dout (B,T,H,D), bf16; nobody copies them.
"""
import ctypes
import importlib
import os
import random
import types

from comparison import fail

TENSORS = ("out", "dq", "dk", "dv", "lse")
DROPOUT_KEY, DROPOUT_SITE = 20240529, 0  # of our masks (scripts/dropout_masks.py); the site is attention_library.cu's
State = types.SimpleNamespace


def document_ends(case):
    """Where documents end, of all sequences one behind the other: lengths are exponential of mean T / case.documents, the same in
    every run; a sequence's end is a document's."""
    lengths, ends = random.Random(0), [0]
    while ends[-1] < case.B * case.T:
        room = case.T - ends[-1] % case.T
        ends.append(ends[-1] + min(room, 1 + int(lengths.expovariate(case.documents / case.T))))
    return ends[1:]


def document_bounds(torch, case, device):
    """starts, ends (B,T) int32: of the document that a position is of."""
    ends = document_ends(case)
    bounds = torch.empty(2, case.B * case.T, dtype=torch.int32)
    for start, end in zip([0] + ends, ends):
        bounds[0, start:end], bounds[1, start:end] = start % case.T, start % case.T + end - start
    return list(bounds.to(device).view(2, case.B, case.T))


class Ours:
    """build/libattention.so (dev/driver/attention_library.cu)."""

    name = "ours"

    def __init__(self, torch, path):
        self.torch = torch
        try:
            self.kernels = ctypes.CDLL(os.path.abspath(path))  # a bare name would be looked for elsewhere
        except OSError as error:
            fail(f"{path}: cannot be loaded: {error}; hint: make build/libattention.so")
        pointer, integer_type = ctypes.c_void_p, ctypes.c_int
        self.kernels.attention_open.argtypes = [pointer]
        self.kernels.attention_serves.argtypes = [integer_type] * 2
        self.kernels.attention_scratch.argtypes = [integer_type] * 4
        self.kernels.attention_scratch.restype = ctypes.c_size_t
        mask = [pointer] * 2 + [ctypes.c_float, pointer]
        self.kernels.attention_forward.argtypes = [pointer] * 3 + [integer_type] * 6 + mask
        self.kernels.attention_backward.argtypes = [pointer] * 6 + [integer_type] * 6 + mask
        self.kernels.attention_open(torch.cuda.current_stream().cuda_stream)

    def prepare(self, case, inputs):
        torch, device = self.torch, inputs.qkv.device
        if not self.kernels.attention_serves(case.D, case.causal):
            raise RuntimeError("no kernel for this head size and mask on this card")
        scratch_bytes = self.kernels.attention_scratch(case.B, case.T, case.H, case.D)
        bounds = document_bounds(torch, case, device) if case.documents else []
        key = torch.tensor([DROPOUT_KEY], dtype=torch.int64, device=device) if case.dropout else None
        return State(
            shape=(case.B, case.T, case.H, case.D, int(case.causal), case.window),
            mask=[*([x.data_ptr() for x in bounds] or [None] * 2), case.dropout, key.data_ptr() if case.dropout else None],
            bounds=bounds, key=key, qkv=inputs.qkv, dout=inputs.dout, out=torch.empty_like(inputs.dout), dqkv=torch.empty_like(inputs.qkv),
            lse=torch.empty(case.B, case.H, case.T, device=device),
            scratch=torch.empty(scratch_bytes, dtype=torch.uint8, device=device))

    def written(self, state):
        """The buffers that forward and backward fill."""
        return state.out, state.dqkv, state.lse

    def poison(self, state):
        """What a launch must overwrite or not depend on becomes NaN."""
        for tensor in self.written(state):
            tensor.fill_(float("nan"))
        state.scratch.fill_(255)

    def forward(self, s):
        self.kernels.attention_forward(s.out.data_ptr(), s.lse.data_ptr(), s.qkv.data_ptr(), *s.shape, *s.mask)

    def backward(self, s):
        self.kernels.attention_backward(s.dqkv.data_ptr(), s.dout.data_ptr(), s.out.data_ptr(), s.qkv.data_ptr(),
                                        s.lse.data_ptr(), s.scratch.data_ptr(), *s.shape, *s.mask)

    def results(self, s):
        dq, dk, dv = s.dqkv.permute(2, 0, 3, 1, 4)
        return {"out": s.out.transpose(1, 2), "lse": s.lse, "dq": dq, "dk": dk, "dv": dv}


class Plain(Ours):
    """The same without dropout, beside it: what dropout costs."""

    name = "plain"

    def prepare(self, case, inputs):
        return super().prepare(case._replace(dropout=0.0), inputs)


class Operator:
    """One of PyTorch's attention operators and its backward, called directly: no autograd, no host work to speak of.
    Writes dQ, dK and dV as three tensors; a trainer would still have to pack them."""

    def __init__(self, name, forward, backward):
        self.name, self.queue_forward, self.queue_backward = name, forward, backward

    def prepare(self, case, inputs):
        q, k, v = inputs.qkv.permute(2, 0, 3, 1, 4)
        return State(q=q, k=k, v=v, dout=inputs.dout.transpose(1, 2), causal=case.causal, window=case.window, dropout=case.dropout,
                     grads=(None,) * 3)

    def forward(self, s):
        s.saved = self.queue_forward(s)

    def backward(self, s):
        s.grads = self.queue_backward(s)

    def results(self, s):
        out, lse = s.saved[:2]
        return dict(zip(TENSORS, (out, *s.grads[:3], lse.reshape(lse.shape[:3]))))


class Autograd:
    """An attention function (q, k, v, causal) over (B,T,H,D) with its backward through autograd: gradients arrive as one
    (B,T,3,H,D), as a trainer wants them."""

    def __init__(self, torch, name, function):
        self.torch, self.name, self.function = torch, name, function

    def prepare(self, case, inputs):
        qkv = inputs.qkv.detach().requires_grad_()
        q, k, v = qkv.unbind(2)
        state = State(q=q, k=k, v=v, qkv=qkv, dout=inputs.dout, causal=case.causal, dqkv=None)
        state.graph = state.out = self.function(q, k, v, case.causal)
        return state

    def forward(self, s):
        with self.torch.no_grad():
            s.out = self.function(s.q, s.k, s.v, s.causal)

    def backward(self, s):
        (s.dqkv,) = self.torch.autograd.grad(s.graph, s.qkv, s.dout, retain_graph=True)

    def results(self, s):
        heads = [x.detach().transpose(1, 2) for x in (s.out, *s.dqkv.unbind(2))]
        return dict(zip(TENSORS, (*heads, None)))


class Flex(Autograd):
    """PyTorch's flex_attention, compiled, with a window or documents: blocks of keys outside are not visited. Through
    autograd."""

    def __init__(self, torch):
        super().__init__(torch, "flex", None)
        flex = importlib.import_module("torch.nn.attention.flex_attention")
        self.compiled, self.block_mask = torch.compile(flex.flex_attention, dynamic=False), flex.create_block_mask

    def prepare(self, case, inputs):
        if case.documents:
            starts = document_bounds(self.torch, case, inputs.qkv.device)[0]
            mask = self.block_mask(lambda b, h, i, j: (j <= i) & (j >= starts[b, i]), case.B, None, case.T, case.T)
        else:
            mask = self.block_mask(lambda b, h, i, j: (j <= i) & (i - j < case.window), None, None, case.T, case.T)

        def function(q, k, v, _):
            return self.compiled(*(x.transpose(1, 2) for x in (q, k, v)), block_mask=mask).transpose(1, 2)

        self.function = function
        return super().prepare(case, inputs)


def operators(torch):
    """cuDNN and FlashAttention-2. Their operators return out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug; each
    forward draws a mask of its own, which the backward makes again of seed and offset."""
    aten = torch.ops.aten

    def cudnn_backward(s):
        out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = s.saved
        return aten._scaled_dot_product_cudnn_attention_backward(
            s.dout, s.q, s.k, s.v, out, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, s.dropout, s.causal)

    def flash_backward(s):
        out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = s.saved
        return aten._scaled_dot_product_flash_attention_backward(
            s.dout, s.q, s.k, s.v, out, lse, cum_q, cum_k, max_q, max_k, s.dropout, s.causal, seed, offset)

    return [
        Operator("cuDNN", lambda s: aten._scaled_dot_product_cudnn_attention(
            s.q, s.k, s.v, None, True, s.dropout, s.causal, False), cudnn_backward),
        Operator("FA2", lambda s: aten._scaled_dot_product_flash_attention(
            s.q, s.k, s.v, s.dropout, s.causal, False), flash_backward),
    ]


def load_flash3(torch):
    """FlashAttention-3's operators, where a package brings them: flash_attn_3, or xformers 0.0.33 or 0.0.34; else None."""
    for module in ("flash_attn_3._C", "xformers.flash_attn_3._C"):
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        return torch.ops.flash_attn_3
    return None


def flash3(library):
    """Its tensors are (B,T,H,D). The backward adds dQ by atomics, its default, so its last bits depend on timing."""

    def rows(*tensors):
        return (x.transpose(1, 2) for x in tensors)

    def window(s):
        return {"window_size_left": s.window - 1, "window_size_right": 0} if s.window else {}

    def forward(s):
        out, *saved = library.fwd(*rows(s.q, s.k, s.v), is_causal=s.causal, **window(s))
        return out.transpose(1, 2), *saved

    def backward(s):
        q, k, v, dout, out = rows(s.q, s.k, s.v, s.dout, s.saved[0])
        grads = library.bwd(dout, q, k, v, out, s.saved[1], is_causal=s.causal, **window(s))
        return tuple(rows(*grads[:3]))

    return Operator("FA3", forward, backward)


def flash3_documents(torch, library):
    """The same of documents: all tokens in a row, and where each document begins in them."""

    class Documents(Operator):
        def prepare(self, case, inputs):
            ends = [0] + document_ends(case)
            q, k, v = inputs.qkv.flatten(0, 1).unbind(1)
            at, longest = torch.tensor(ends, dtype=torch.int32, device=q.device), max(b - a for a, b in zip(ends, ends[1:]))
            return State(q=q, k=k, v=v, dout=inputs.dout.flatten(0, 1), sequences=(case.B, case.T), grads=(None,) * 3,
                         mask={"cu_seqlens_q": at, "cu_seqlens_k": at, "max_seqlen_q": longest, "max_seqlen_k": longest})

        def results(self, s):
            heads = [x.unflatten(0, s.sequences).transpose(1, 2) for x in (s.saved[0], *s.grads)]
            return dict(zip(TENSORS, (*heads, s.saved[1].unflatten(1, s.sequences).transpose(0, 1))))

    return Documents("FA3", lambda s: library.fwd(s.q, s.k, s.v, is_causal=True, num_splits=1, **s.mask),
                     lambda s: library.bwd(s.dout, s.q, s.k, s.v, *s.saved[:2], is_causal=True, **s.mask)[:3])


def flash3_packed(torch, library):
    """FlashAttention-3 as one operator, with its backward, for torch.compile: a function qkv (B,T,3,H,D) -> (B,T,H,D), causal.
    The gradient is one packed tensor that the library fills in place, so nothing is copied or concatenated."""
    Tensor = torch.Tensor

    @torch.library.custom_op("compare_train::flash3_forward", mutates_args=())
    def forward(qkv: Tensor) -> tuple[Tensor, Tensor]:
        out, lse, *_ = library.fwd(*qkv.unbind(2), is_causal=True)
        return out, lse

    @forward.register_fake
    def _(qkv):
        B, T, _, H, D = qkv.shape
        return qkv.new_empty(B, T, H, D), qkv.new_empty(B, H, T, dtype=torch.float32)

    @torch.library.custom_op("compare_train::flash3_backward", mutates_args=())
    def backward(dout: Tensor, qkv: Tensor, out: Tensor, lse: Tensor) -> Tensor:
        dqkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
        dq, dk, dv = dqkv.unbind(2)
        library.bwd(dout.contiguous(), *qkv.unbind(2), out, lse, dq=dq, dk=dk, dv=dv, is_causal=True)
        return dqkv

    @backward.register_fake
    def _(dout, qkv, out, lse):
        return qkv.new_empty(qkv.shape)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], *output)
        ctx.set_materialize_grads(False)

    forward.register_autograd(lambda ctx, dout, _: backward(dout, *ctx.saved_tensors), setup_context=keep)
    return lambda qkv: forward(qkv)[0]


def peers(torch, autograd, window=0, documents=0, dropout=0.0):
    """The peers that this process can run; autograd: cuDNN once more, as a trainer calls it. With a window or documents those
    that have them: FlashAttention-3 and flex_attention; with dropout all but FlashAttention-3, which has none."""
    found = [] if window or documents else operators(torch)
    if not dropout and (library := load_flash3(torch)):
        found.append(flash3_documents(torch, library) if documents else flash3(library))
    if window or documents:
        return found + [Flex(torch)]
    if autograd:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def sdpa(q, k, v, causal):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal).transpose(1, 2)

        found.append(Autograd(torch, "packed", sdpa))
    return found
