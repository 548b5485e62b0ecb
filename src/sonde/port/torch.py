"""PyTorch modules as programs: the values of submodules by hooks, and single operations by a dispatch mode.

Imports `torch` when it is used, and never before.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde._extras import load
from sonde.core import Records, capture, sow
from sonde.port.gradients import factors
from sonde.port.widening import Known, wide_arrays
from sonde.programs.unrolled import Step, Tape

_SONDE = str(Path(__file__).resolve().parent.parent)


def is_torch_module(thing: object) -> bool:
    """Whether an object is a PyTorch module; does not import PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.nn.Module)


def model_of_folder(folder: str | Path) -> Any:
    """The PyTorch module that a folder of Hugging Face holds, with its weights, ready to run.

    Raises:
        MissingExtra: `transformers` or `torch` is not installed.
        ValueError: The folder has no config.json that names a class of `transformers`.
    """
    config = Path(folder) / "config.json"
    if not config.is_file():
        raise ValueError(f"{str(folder)!r} has no config.json: it is not a model folder of Hugging Face")
    load("torch", extra="torch", purpose="running a model folder")
    transformers = load("transformers", extra="torch", purpose="running a model folder")
    names = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
    kind = next((found for name in names if (found := getattr(transformers, name, None)) is not None), None)
    if kind is None:
        raise ValueError(f"{str(config)!r} names the architectures {names}, none of which is in transformers")
    return kind.from_pretrained(str(folder)).eval()


def weights_of(module: Any) -> Iterator[np.ndarray]:
    """The floating-point parameters and buffers of a module."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            yield _array(tensor, copied=False)


def in_single_precision(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: Known, draw: int | None = None
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A copy of a module, and what it is called with, in single precision; `draw` is as in `wide_arrays`."""
    torch = _torch()
    module = copy.deepcopy(module)
    narrow = [x for x in (*module.parameters(), *module.buffers()) if x.dtype in (torch.bfloat16, torch.float16)]
    arrays = wide_arrays([_array(x) for x in narrow], known, draw)
    with torch.no_grad():
        for tensor, array in zip(narrow, arrays):
            tensor.data = _tensor(array)

    def wide(x: Any) -> Any:
        return x.float() if isinstance(x, torch.Tensor) and x.dtype in (torch.bfloat16, torch.float16) else x

    return module, *jax.tree.map(wide, (_as_tensors(args), _as_tensors(dict(kwargs))))


def torch_records(module: Any) -> Callable[..., Records]:
    """A function that runs a PyTorch module and returns the inputs and outputs of its submodules as records.

    The paths are those of the submodules, `layers/0/attn/out` and `layers/0/attn/in`; the module's own are `in` and
    `out`. If a submodule runs several times, its record has several values. If something requires a gradient, records
    have the gradients of a fixed random combination of the results: the one that `compare` takes.

    Args:
        module: The module. Its weights, mode and gradients are left as they are.

    Returns:
        A function with the arguments of the module; arrays of NumPy and JAX are taken as tensors.

    Raises:
        TypeError: `module` is not a PyTorch module.
    """
    if not is_torch_module(module):
        raise TypeError(f"torch_records takes a torch.nn.Module, got {module!r} of type {type(module).__name__}")

    def recorded(*args: Any, **kwargs: Any) -> Records:
        run = TorchRun.of(module, args, kwargs, grads=True)
        return records_of([(value.path, value.array, value.gradient) for value in run.values])

    return recorded


def records_of(named: Sequence[tuple[str, np.ndarray, np.ndarray | None]]) -> Records:
    """Records with these values and gradients, by path and in this order."""

    def marked(arrays: list[Any]) -> Any:
        total = jnp.zeros(())
        for array, (path, _, gradient) in zip(arrays, named):
            seen = sow(array, path)
            if gradient is not None:
                total += jnp.sum(seen.astype(jnp.float32) * jnp.asarray(gradient, jnp.float32))
        return total

    arrays = [jnp.asarray(array) for _, array, _ in named]
    moving = [i for i, (_, _, gradient) in enumerate(named) if gradient is not None]
    if not moving:
        return capture(marked)(arrays)[1]

    def of_moving(some: list[Any]) -> Any:
        filled = list(arrays)
        for i, x in zip(moving, some):
            filled[i] = x
        return marked(filled)

    return capture(jax.grad(of_moving), grads=True)([arrays[i] for i in moving])[1]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TorchValue:
    """What went into or came out of a submodule."""

    path: str
    array: np.ndarray
    gradient: np.ndarray | None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TorchRun:
    """A run of a PyTorch module.

    Attributes:
        values: The inputs and outputs of its submodules, as it ran.
        results: What it returned, by place.
    """

    values: tuple[TorchValue, ...]
    results: tuple[tuple[str, np.ndarray], ...]

    @classmethod
    def of(
        cls, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, grads: bool, around: Any = None
    ) -> TorchRun:
        """Runs a module, in a context if one is given."""
        torch = _torch()
        tensors: list[tuple[str, Any]] = []

        def note(path: str, value: Any) -> None:
            for place, tensor in _tensors(value):
                if grads and tensor.requires_grad and not tensor.is_leaf:
                    tensor.retain_grad()
                tensors.append((path + place, tensor))

        hooks = []
        for name, submodule in module.named_modules():
            prefix = f"{name.replace('.', '/')}/" if name else ""

            def before(_: Any, inputs: Any, options: Any, prefix: str = prefix) -> None:
                first = next(_tensors([inputs, options]), None)
                if first is not None:
                    note(f"{prefix}in", first[1])

            hooks.append(submodule.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(submodule.register_forward_hook(lambda _, __, out, prefix=prefix: note(f"{prefix}out", out)))
        parameters = list(module.parameters())
        kept = [p.grad for p in parameters]
        try:
            with contextlib.ExitStack() as stack:
                if around is not None:
                    stack.enter_context(around)
                if not grads:
                    stack.enter_context(torch.no_grad())
                result = module(*_as_tensors(args), **_as_tensors(dict(kwargs)))
                outs = list(_tensors(result))
                if grads:
                    _backward(torch, [tensor for _, tensor in outs])
            values = [TorchValue(path, _array(t), _gradient(t)) for path, t in tensors]
        finally:
            for hook in hooks:
                hook.remove()
            for parameter, gradient in zip(parameters, kept):
                parameter.grad = gradient
        return cls(tuple(values), tuple((place, _array(t)) for place, t in outs))


def _backward(torch: Any, results: Sequence[Any]) -> None:
    """Computes the gradients of the combination of results that `port.gradients` takes."""
    chosen, signs = _combination(torch, results)
    if chosen:
        torch.autograd.backward(chosen, signs)


def _combination(torch: Any, results: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The results that have gradients, and the factors of their elements."""
    chosen = [(i, t) for i, t in enumerate(results) if t.requires_grad]
    signs = [factors(i, tuple(t.shape)) for i, t in chosen]
    return [t for _, t in chosen], [torch.as_tensor(s, dtype=t.dtype) for s, (_, t) in zip(signs, chosen)]


@contextlib.contextmanager
def without_padding(module: Any) -> Iterator[list[str]]:
    """Gives embeddings the gradients of padding, which PyTorch leaves at zero; yields the settings that do that."""
    padded = [(name, m, m.padding_idx) for name, m in module.named_modules() if isinstance(m, _torch().nn.Embedding)]
    padded = [(name, m, number) for name, m, number in padded if number is not None]
    try:
        for _, m, _ in padded:
            m.padding_idx = None
        yield [f"{name}.padding_idx={number}" for name, _, number in padded]
    finally:
        for _, m, number in padded:
            m.padding_idx = number


def torch_gradients(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], around: Any = None
) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
    """The gradients of the combination of results that `port.gradients` takes, with respect to everything that goes in.

    Args:
        module: The module. Its weights and their gradients are left as they are.
        args: Its arguments.
        kwargs: Its keyword arguments.
        around: A context in which it runs.

    Returns:
        Where in the arguments each input is, `""` for a parameter; the inputs and parameters; the gradients.
    """
    torch = _torch()
    leaves, tree = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    names, wanted, filled = [], [], []
    for path, leaf in leaves:
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | torch.Tensor):
            leaf = leaf.detach().clone() if isinstance(leaf, torch.Tensor) else _tensor(leaf)
            if leaf.is_floating_point():
                names.append(jax.tree_util.keystr(path))
                wanted.append(leaf.requires_grad_())
        filled.append(leaf)
    new_args, new_kwargs = jax.tree.unflatten(tree, filled)
    parameters = [p for p in module.parameters() if p.is_floating_point()]
    frozen = [p for p in parameters if not p.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        wanted += parameters
        with contextlib.ExitStack() as stack:
            if around is not None:
                stack.enter_context(around)
            stack.enter_context(torch.enable_grad())
            results = [t for _, t in _tensors(module(*new_args, **new_kwargs))]
            chosen, signs = _combination(torch, results)
            found = torch.autograd.grad(chosen, wanted, signs, allow_unused=True)
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
    arrays = [_array(torch.zeros_like(x) if g is None else g, copied=False) for x, g in zip(wanted, found)]
    return [*names, *[""] * len(parameters)], [_array(x, copied=False) for x in wanted], arrays


def _torch() -> Any:
    return sys.modules["torch"]  # the caller has a module of it


def _as_tensors(tree: Any) -> Any:
    return jax.tree.map(
        lambda x: _tensor(x) if isinstance(x, jax.Array | np.ndarray | np.generic) else x,
        tuple(tree) if isinstance(tree, list) else tree,
    )


def _tensor(array: Any) -> Any:
    torch = _torch()
    if array.dtype == jnp.bfloat16:  # which NumPy does not know
        return torch.as_tensor(np.array(array, np.float32)).bfloat16()
    return torch.as_tensor(np.array(array))


def _tensors(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in a result, with their places: in tuples, lists, dicts and the outputs of `transformers`."""
    torch = _torch()
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(part, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _tensors(part, f"{place}[{i}]")


def _array(tensor: Any, *, copied: bool = True) -> np.ndarray:
    torch = _torch()
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(jnp.asarray(tensor.float().numpy(), jnp.bfloat16))
    return np.array(tensor.numpy()) if copied else tensor.numpy()


def _gradient(tensor: Any) -> np.ndarray | None:
    if not tensor.requires_grad or not (tensor.is_leaf or tensor.retains_grad) or tensor.grad is None:
        return None
    return _array(tensor.grad)


# ---------------------------------------------------------------------------------------------------------------------
# Single operations
# ---------------------------------------------------------------------------------------------------------------------


class TorchTape(Tape):
    """The operations of a PyTorch module. It can be run again with other rounding, and not with other numbers."""

    moved: list[Any]

    def again(
        self, replaced: Mapping[int, Any], *, around: Callable[[Step, Sequence[Any]], list[Any]] | None = None
    ) -> list[Any]:
        """The values with other rounding."""
        if replaced or around is None:
            raise TypeError("operations of PyTorch are not run again with other numbers")
        return self.moved


def torch_tape(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TorchTape:
    """Runs a module and keeps every operation of PyTorch."""
    tape = _taped(module, args, kwargs, jitter=None)
    moved = _taped(module, args, kwargs, jitter=0)
    same = [s.name for s in tape.steps] == [s.name for s in moved.steps] and len(tape.values) == len(moved.values)
    tape.moved = moved.values if same else tape.values
    return tape


def _taped(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], jitter: int | None) -> TorchTape:
    torch = _torch()
    from torch.utils._python_dispatch import TorchDispatchMode  # pyright: ignore[reportMissingImports]

    tape = TorchTape([], [], [], [])
    numbers: dict[int, int] = {}
    alive: list[Any] = []  # tensors are known by identity
    scopes: list[str] = []
    random = torch.Generator().manual_seed(jitter or 0)

    def number_of(tensor: Any, maker: int | None = None) -> int:
        if maker is None and id(tensor) in numbers:
            return numbers[id(tensor)]
        alive.append(tensor)
        numbers[id(tensor)] = len(tape.values)
        tape.values.append(_array(tensor))
        tape.makers.append(maker)
        if maker is None:
            tape.given.append(numbers[id(tensor)])
        return numbers[id(tensor)]

    class See(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            inputs = [number_of(t) for _, t in _tensors([args, kwargs])]
            out = func(*args, **kwargs)
            name = str(func).removeprefix("aten.").partition(".")[0]
            if jitter is not None and name not in _EXACT and not name.endswith("_"):
                out = _jittered(torch, out, random)
            step = len(tape.steps)
            outputs = tuple(number_of(t, step) for _, t in _tensors(out))
            settings = {str(i): x for i, x in enumerate(_plain_numbers((args, kwargs)))}
            scope = scopes[-1] if scopes else ""
            tape.steps.append(Step(name, tuple(inputs), outputs, _no_run, _lines(), scope, settings=settings))
            return out

    def leave(*_: Any) -> None:
        scopes.pop()

    positional, named = _as_tensors(args), _as_tensors(dict(kwargs))
    hooks = []
    for name, submodule in module.named_modules():
        path = name.replace(".", "/")
        hooks.append(submodule.register_forward_pre_hook(lambda _, __, path=path: scopes.append(path)))
        hooks.append(submodule.register_forward_hook(leave))
    try:
        # Attention as one operation would hide its scores, its mask and its softmax.
        with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), See():
            result = module(*positional, **named)
            tape.results = [number_of(t) for _, t in _tensors(result)]
    finally:
        for hook in hooks:
            hook.remove()
    return tape


def rounding_mode(seed: int) -> Any:
    """A context in which the arithmetic of PyTorch rounds differently."""
    torch = _torch()
    from torch.utils._python_dispatch import TorchDispatchMode  # pyright: ignore[reportMissingImports]

    random = torch.Generator().manual_seed(seed)

    class Jitter(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = str(func).removeprefix("aten.").partition(".")[0]
            return out if name in _EXACT or name.endswith("_") else _jittered(torch, out, random)

    return Jitter()


_EXACT = frozenset(
    {"_to_copy", "as_strided", "cat", "clone", "copy", "detach", "embedding", "expand", "gather", "index", "lift_fresh"}
    | {"masked_fill", "permute", "repeat", "select", "slice", "split", "squeeze", "stack", "t", "transpose", "tril"}
    | {"triu", "unsqueeze", "view", "_unsafe_view", "where", "alias", "arange", "full", "ones", "zeros", "unbind"}
)


_PRIME = 65_521


def _jittered(torch: Any, out: Any, random: Any) -> Any:
    """Half of the elements moved by one unit in the last place."""

    def moved(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return tensor
        unit = torch.finfo(tensor.dtype).eps
        # A prime number of factors, repeated: random numbers for each weight would take longer than the model.
        steps = torch.randint(-1, 2, (min(tensor.numel(), _PRIME),), generator=random)
        factors = (1 + unit * steps).to(tensor.dtype)
        if tensor.numel() > _PRIME:
            factors = factors.repeat(-(-tensor.numel() // _PRIME))[: tensor.numel()]
        return tensor * factors.view(tensor.shape)

    return type(out)(moved(t) for t in out) if isinstance(out, list | tuple) else moved(out)


def _no_run(values: Sequence[Any]) -> list[Any]:
    raise TypeError("operations of PyTorch are not run again")


def _plain_numbers(tree: Any) -> Iterator[float]:
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, int | float) and not isinstance(leaf, bool):
            yield leaf


def _lines() -> tuple[str, ...]:
    """The lines of the module's code that are running, innermost first, without those of PyTorch."""
    inside = (str(Path(_torch().__file__).parent), _SONDE)
    lines = []
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(inside):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(lines)
