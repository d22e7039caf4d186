"""A stand-in for PyTorch that computes nothing: tensors are the expressions that would have made them, and what is done for its
effect is noted in order. So a model written in PyTorch can be read on a machine without it."""
import sys
import types


class Expression:
    """x.view(1, 2) is the expression 'x.view(1, 2)'; its shape is given."""

    def __init__(self, text, shape=(2, 8, 4)):
        self.text, self.shape = text, shape

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: Expression(f"{self.text}.{name}({words(arguments, named)})")

    def __getitem__(self, key):
        return Expression(f"{self.text}[:{key.stop}]" if isinstance(key, slice) else f"{self.text}[{key}]")

    def __add__(self, other):
        return Expression(f"({self.text} + {other.text})")

    def __iter__(self):
        return (self[i] for i in range(3))

    def __repr__(self):
        return self.text


def words(arguments, named):
    return ", ".join([str(argument) for argument in arguments] + [f"{name}={value}" for name, value in named.items()])


def function(name):
    return lambda *arguments, **named: Expression(f"{name}({words(arguments, named)})")


class Parameter:
    def __init__(self, name, dimensions):
        self.name, self.dimensions = name, dimensions

    def dim(self):
        return self.dimensions

    def __repr__(self):
        return self.name


class Module:
    """torch.nn.Module: children by their attributes, parameters by the children's kinds."""

    def __call__(self, *arguments):
        return self.forward(*arguments)

    def children(self, prefix):
        for name, child in vars(self).items():
            if isinstance(child, Module):
                yield f"{prefix}{name}", child

    def named_parameters(self, prefix=""):
        for name, child in self.children(prefix):
            yield from child.named_parameters(f"{name}.")

    def parameters(self):
        return (parameter for _, parameter in self.named_parameters())

    def cuda(self):
        return self


class Leaf(Module):
    """A layer with parameters: {name: dimensions}."""

    def __init__(self, kind, sizes, parameters):
        self.kind, self.sizes, self.own = kind, sizes, parameters

    def forward(self, x):
        return Expression(f"{self.kind}{self.sizes}({x})")

    def named_parameters(self, prefix=""):
        for name, dimensions in self.own.items():
            yield prefix + name, Parameter(prefix + name, dimensions)

    @property
    def weight(self):
        return Expression(f"{self.kind}{self.sizes}.weight")


class Several(Module):
    def __init__(self, modules):
        self.modules = list(modules)

    def children(self, prefix):
        return ((f"{prefix}{i}", module) for i, module in enumerate(self.modules))

    def __iter__(self):
        return iter(self.modules)

    def forward(self, x):
        for module in self.modules:
            x = module(x)
        return x


class Event:
    def __init__(self, enable_timing):
        self.at = None

    def record(self):
        self.at = Event.clock()

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


class Context:
    """with autocast(...): noted as it begins and ends."""

    def __init__(self, noted, text):
        self.noted, self.text = noted, text

    def __enter__(self):
        self.noted.append(f"with {self.text}")

    def __exit__(self, *_):
        self.noted.append(f"end {self.text}")


def install(noted, clock):
    """Puts the stand-in where `import torch` finds it; returns it. clock(): seconds."""
    Event.clock = staticmethod(clock)

    def note(name):
        return lambda *arguments, **named: noted.append(f"{name}({words(arguments, named)})")

    class Optimizer:
        def __init__(self, groups, **named):
            self.groups = groups
            noted.append(f"AdamW({words((), named)})")

        def step(self):
            noted.append("optimizer.step()")

        zero_grad = staticmethod(note("zero_grad"))

    torch, nn, functional, attention = (types.ModuleType(name) for name in (
        "torch", "torch.nn", "torch.nn.functional", "torch.nn.attention"))
    nn.Module, nn.ModuleList, nn.Sequential = Module, Several, lambda *modules: Several(modules)
    nn.Linear = lambda a, b: Leaf("Linear", (a, b), {"weight": 2, "bias": 1})
    nn.Embedding = lambda a, b: Leaf("Embedding", (a, b), {"weight": 2})
    nn.LayerNorm = lambda C: Leaf("LayerNorm", (C,), {"weight": 1, "bias": 1})
    nn.GELU = lambda **named: Leaf("GELU", (words((), named),), {})
    nn.init = types.SimpleNamespace(normal_=note("normal_"))
    nn.utils = types.SimpleNamespace(clip_grad_norm_=lambda parameters, most: noted.append(f"clip({len(list(parameters))}, {most})"))
    for name in ("scaled_dot_product_attention", "linear", "cross_entropy", "dropout"):
        setattr(functional, name, function(name))
    attention.SDPBackend = types.SimpleNamespace(CUDNN_ATTENTION="cudnn", FLASH_ATTENTION="flash", MATH="math")
    attention.sdpa_kernel = lambda backend: Context(noted, f"sdpa_kernel({backend})")
    nn.functional, nn.attention, torch.nn = functional, attention, nn
    torch.manual_seed, torch.set_float32_matmul_precision = note("manual_seed"), note("precision")
    torch.optim = types.SimpleNamespace(AdamW=Optimizer)
    torch.compile = lambda model, **named: noted.append(f"compile({words((), named)})") or model
    torch.compiler = types.SimpleNamespace(cudagraph_mark_step_begin=note("mark_step"))
    torch.device = lambda name: Context(noted, f"device({name})")
    torch.bfloat16, torch.int16, torch.int64 = "bf16", "int16", "int64"
    torch.autocast = lambda device, dtype: Context(noted, f"autocast({device}, {dtype})")
    torch.cuda = types.SimpleNamespace(
        Event=Event, synchronize=note("synchronize"), reset_peak_memory_stats=note("reset_peak"), empty_cache=note("empty_cache"),
        max_memory_allocated=lambda: 11, max_memory_reserved=lambda: 22)
    sys.modules.update({"torch": torch, "torch.nn": nn, "torch.nn.functional": functional, "torch.nn.attention": attention})
    return torch
