"""Makes the oracles anew: `python -m tests.models.make_oracles`, with `torch` and `transformers` installed.

With names of cases as arguments, only those.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import transformers
from tests.models.cases import CASES, ORACLES, Case, inputs, is_decoder, weights


def model_of(case: Case) -> Any:
    """The model of `transformers` with the weights of the case."""
    kind = getattr(transformers, case.model)
    config = kind.config_class(**case.options)
    config.architectures = [case.model]
    # `eager` attention is the one that is written out; the others give what they may for rows of padding alone.
    model = kind._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, tensor in own_tensors(model).items():
            tensor.copy_(torch.tensor(weights(name, tuple(tensor.shape))))
    return model


def own_tensors(model: Any) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint; of tied ones only the first."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            found.setdefault(tensor.data_ptr(), (name, tensor))
    return dict(found.values())


def run(model: Any, case: Case, given: dict[str, np.ndarray]) -> torch.Tensor:
    """The outputs of the model."""
    arguments: dict[str, Any] = {}
    if "tokens" in given:
        arguments["input_ids"] = torch.tensor(given["tokens"].astype(np.int64))
    if "images" in given:
        arguments["pixel_values"] = torch.tensor(given["images"].transpose(0, 3, 1, 2))
    if "mask" in given:
        arguments["attention_mask"] = torch.tensor(given["mask"].astype(np.int64))
        if is_decoder(case):
            positions = np.maximum(np.cumsum(given["mask"], 1) - 1, 0)
            arguments["position_ids"] = torch.tensor(positions)
    out = model(**arguments)
    for name in ("logits", "prediction_logits", "logits_per_image", "text_embeds", "image_embeds", "last_hidden_state"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    raise AssertionError(case.model)


def stored(case: Case) -> dict[str, Any]:
    """What is stored of a case."""
    model, given = model_of(case), inputs(case)
    out = run(model, case, given)
    found = {
        "config": json.loads(model.config.to_json_string(use_diff=False)),
        "tensors": {name: list(tensor.shape) for name, tensor in own_tensors(model).items()},
        "outputs": _numbers(out),
    }
    if case.gradients:
        # The mean logarithm of the probability of every next token, and its gradients.
        targets = torch.tensor(given["tokens"].astype(np.int64))[:, 1:]
        logs = torch.log_softmax(out[:, :-1].double(), -1)
        seen = torch.tensor(given["mask"])[:, :-1]
        loss = -(logs.gather(-1, targets[..., None])[..., 0] * seen).sum() / seen.sum()
        loss.backward()
        found["loss"] = float(loss)
        kept = {n: p for n, p in model.named_parameters() if p.grad is not None and ".1." not in n}
        found["gradients"] = {name: _numbers(parameter.grad) for name, parameter in kept.items()}
    return found


def _numbers(x: torch.Tensor) -> Any:
    return np.vectorize(lambda value: float(f"{value:.7g}"))(x.detach().double().numpy()).tolist()


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    ORACLES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        case = CASES[name]
        (ORACLES / f"{name}.json").write_text(json.dumps(stored(case), separators=(",", ":")) + "\n")
        print(name)
