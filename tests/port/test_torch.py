"""PyTorch modules against ports to JAX, right and with mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde.port.gradients import factors
from sonde.tools import compare, torch_records

pytestmark = pytest.mark.transformers

D, H, LENGTH = 16, 4, 5


def network() -> Any:
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = torch.nn.LayerNorm(D), torch.nn.LayerNorm(D)
            self.qkv, self.o = torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)
            self.up, self.dn = torch.nn.Linear(D, 4 * D), torch.nn.Linear(4 * D, D)

        def forward(self, x: Any) -> Any:
            t = x.shape[0]
            q, k, v = (y.view(t, H, -1).transpose(0, 1) for y in self.qkv(self.n1(x)).chunk(3, -1))
            s = q @ k.transpose(1, 2) / (D // H) ** 0.5
            s = s.masked_fill(~torch.ones(t, t).tril().bool(), float("-inf"))
            x = x + self.o((s.softmax(-1) @ v).transpose(0, 1).reshape(t, D))
            return x + self.dn(torch.nn.functional.gelu(self.up(self.n2(x))))

    torch.manual_seed(0)
    net = torch.nn.Sequential(*[Block() for _ in range(3)])
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("bias") or ".n" in name:
                parameter += torch.randn_like(parameter) / 4
    return net


def port(net: Any, wrong: str = "") -> Any:
    layers = [{n: jnp.asarray(p.detach().numpy()) for n, p in block.named_parameters()} for block in net]

    def linear(w: Any, name: str, x: Any) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(w: Any, name: str, x: Any, eps: float) -> Any:
        scaled = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + eps)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def run(x: Any) -> Any:
        for i, w in enumerate(layers):
            bad = wrong if i == 1 else ""
            h = linear(w, "qkv", norm(w, "n1", x, 1e-3 if bad == "eps" else 1e-5))
            q, k, v = (y.reshape(LENGTH, H, -1).transpose(1, 0, 2) for y in jnp.split(h, 3, -1))
            s = q @ k.transpose(0, 2, 1) / (1.0 if bad == "scale" else (D // H) ** 0.5)
            s = jnp.where(jnp.tri(LENGTH, k=int(bad == "mask"), dtype=bool), s, -jnp.inf)
            a = (jax.nn.softmax(s) @ v).transpose(1, 0, 2).reshape(LENGTH, D)
            x = x + (a @ w["o.weight"] + w["o.bias"] if bad == "transposed" else linear(w, "o", a))
            m = jax.nn.gelu(linear(w, "up", norm(w, "n2", x, 1e-5)), approximate=bad == "gelu")
            x = x + (m @ w["dn.weight"].T if bad == "bias" else linear(w, "dn", m))
        return x

    return run


X = np.random.default_rng(0).normal(size=(LENGTH, D)).astype(np.float32)


def test_a_right_port() -> None:
    net = network()
    found = compare(net, port(net))(X)
    assert found.first is None and not found.unchecked
    # One result, its gradient with respect to the input, and to twelve parameters of each of three blocks.
    assert len(found.results) == 1 + 1 + 36 and sum(d.gradient for d in found.results) == 37


def test_a_module_of_low_precision() -> None:
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network().bfloat16()
            self.register_buffer("scale", torch.tensor([1.2345, 0.7654], dtype=torch.bfloat16))

        def forward(self, x: Any) -> Any:
            return self.net(x) * self.scale[0] + self.scale[1]

    low, x = Module(), jnp.asarray(X, jnp.bfloat16)
    scaled = lambda run: lambda x: run(x) * jnp.float32(1.2345) + jnp.float32(0.7654)  # not known to the module
    right = compare(low, scaled(port(network())))(x)
    assert right.first is None and right.precision.startswith("computed in float32, the programs agree to")
    wrong = compare(network().bfloat16(), port(network(), "eps"), grads=False)(x)
    assert wrong.first is not None and wrong.precision == "seen with both programs computed in float32"
    assert all(p.dtype == torch.bfloat16 for p in low.parameters())


def test_gradients_of_padding_are_no_difference_of_a_right_port() -> None:
    """PyTorch leaves them at zero: a port that does so too is as right as one that does not."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed = torch.nn.Embedding(7, 4, padding_idx=0)
            with torch.no_grad():
                self.embed.weight[0] = 0.5

        def forward(self, ids: Any) -> Any:
            return torch.tanh(self.embed(ids))

    net = Net()
    table, ids = jnp.asarray(net.embed.weight.detach().numpy()), np.array([[0, 3, 1]])
    found = compare(net, lambda ids: jnp.tanh(table[ids]))(ids)
    assert found.first is None and any("embed.padding_idx=0" in text for text in found.unchecked)
    stopped = lambda ids: jnp.tanh(jnp.where((ids == 0)[..., None], jax.lax.stop_gradient(table[ids]), table[ids]))
    assert compare(net, stopped)(ids).first is None
    wrong = lambda ids: jnp.tanh(jnp.where((ids == 3)[..., None], jax.lax.stop_gradient(table[ids]), table[ids]))
    assert compare(net, wrong)(ids).first is not None
    assert net.embed.padding_idx == 0


def test_a_gradient_that_differs_is_found() -> None:
    net = network()
    right = port(net)

    def stopped(x: Any) -> Any:
        halfway = right(x)
        return halfway + (x - jax.lax.stop_gradient(x))

    found = compare(net, stopped)(X)
    assert found.first is not None and found.first.gradient and "argument" in found.first.path


def test_weights_that_only_one_side_has_twice() -> None:
    import torch

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(7, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Any) -> Any:
            return self.head(torch.tanh(self.embed(ids)))

    torch.manual_seed(0)
    net = Tied()
    table = net.embed.weight.detach().numpy()
    apart = jnp.array(table), jnp.array(table)
    ids = np.array([1, 5, 1])
    right = compare(net, lambda ids: jnp.tanh(apart[0][ids]) @ apart[1].T)(ids)
    assert right.first is None and sum(d.gradient for d in right.results) == 1
    stopped = lambda ids: jnp.tanh(apart[0][ids]) @ jax.lax.stop_gradient(apart[1]).T
    wrong = compare(net, stopped)(ids)
    assert wrong.first is not None and wrong.first.gradient


@pytest.mark.parametrize(
    ("mistake", "operation", "cause"),
    [
        ("eps", "add", "with eps=1e-05 in place of 0.001"),
        ("scale", "select_n", None),
        ("mask", "select_n", None),
        ("transposed", "dot_general", "with the weight [16, 16] transposed"),
        ("gelu", "integer_pow", "with the exact gelu in place of the tanh approximation of gelu"),
        ("bias", "dot_general", "with the bias [16] of the first program, which the second lacks"),
    ],
)
def test_mistakes_are_found_at_their_operation(mistake: str, operation: str, cause: str | None) -> None:
    net = network()
    found = compare(net, port(net, mistake))(X)
    assert found.first is not None and found.parting is not None
    assert found.parting.second[0].name == operation
    assert "test_torch.py" in found.parting.second[0].source
    assert all(op.scope.startswith("1") for op in found.parting.first)
    if cause is not None:
        assert cause in str(found.parting.cause)


def test_records_have_values_and_gradients_of_submodules() -> None:
    import torch

    net = network()
    records = torch_records(net)(X)
    values = {}
    for name, submodule in net.named_modules():
        submodule.register_forward_hook(lambda _, __, out, name=name: values.update({name: out}))
    out = net(torch.as_tensor(X))
    values["0.o"].retain_grad()
    out.backward(torch.as_tensor(factors(0, tuple(out.shape)), dtype=torch.float32))
    np.testing.assert_allclose(records["0/o/out"].value, values["0.o"].detach(), rtol=1e-6)
    np.testing.assert_allclose(records["0/o/out"].grad, values["0.o"].grad, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(records["out"].value, out.detach(), rtol=1e-6)
    assert list(records)[:4] == ["in", "0/in", "0/n1/in", "0/n1/out"]
    with pytest.raises(TypeError, match=r"torch_records takes a torch.nn.Module"):
        torch_records(lambda x: x)


def test_records_against_a_program() -> None:
    net = network()
    records = torch_records(net)(X)
    found = compare(records, port(net))(X)
    assert found.first is None and "the result" in found.names.values()


def test_a_model_folder_is_a_side(tmp_path: Path) -> None:
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = sonde.models.load(tmp_path)
    ids = np.array([[3, 1, 4, 1, 5]])
    right = compare(tmp_path, lambda ids: model(ids), grads=False)(ids)
    assert right.first is None and len(right.results) == 1
    wrong = compare(str(tmp_path), lambda ids: model(ids[:, ::-1]), grads=False)(ids)
    assert wrong.first is not None
    with pytest.raises(ValueError, match=r"has no config.json: it is not a model folder of Hugging Face"):
        compare(tmp_path.parent, lambda ids: model(ids))(ids)
