"""Writers for numbers: a file of JSON lines, TensorBoard, Weights & Biases, MLflow.

A writer is any function of a step and a flat dict of numbers. The libraries are loaded when a writer is made.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Writer = Callable[[int, Mapping[str, float]], None]

_MONITORED_STEP = "monitored_step"


def json_lines(path: str | Path) -> Writer:
    """A writer that appends one line per step to a file: `{"step": 10, "h/mean": 0.5}`.

    NaN and infinities, which JSON does not have, are null.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)

    def write(step: int, numbers: Mapping[str, float]) -> None:
        line = {"step": step, **{name: x if math.isfinite(x) else None for name, x in numbers.items()}}
        with target.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    return write


def tensorboard(folder: str | Path) -> Writer:
    """A writer of scalars for TensorBoard (needs the extra `sonde-jax[tensorboard]`)."""
    events = _optional("tensorboardX", "tensorboard").SummaryWriter(str(folder))

    def write(step: int, numbers: Mapping[str, float]) -> None:
        for name, x in numbers.items():
            events.add_scalar(name, x, step)
        events.flush()

    return write


def weights_and_biases(run: Any = None) -> Writer:
    """A writer to a run of Weights & Biases, by default the current one (needs the extra `sonde-jax[wandb]`).

    The numbers are drawn over `monitored_step`. They arrive later than the script's own `run.log` of the same step, and
    the run drops what is logged for an earlier one of its own steps.
    """
    if run is None:
        wandb = _optional("wandb", "wandb")
        run = wandb.run or wandb.init()
    defined: set[str] = set()

    def write(step: int, numbers: Mapping[str, float]) -> None:
        for name in numbers:
            if name not in defined:
                run.define_metric(name, step_metric=_MONITORED_STEP)
                defined.add(name)
        run.log({**numbers, _MONITORED_STEP: step})

    return write


def mlflow(client: Any = None) -> Writer:
    """A writer of metrics to the active run of MLflow (needs the extra `sonde-jax[mlflow]`).

    Args:
        client: Anything else with MLflow's `log_metrics`.
    """
    target = _optional("mlflow", "mlflow") if client is None else client

    def write(step: int, numbers: Mapping[str, float]) -> None:
        # MLflow allows no brackets and no @ in names.
        allowed = {re.sub(r"[^\w\-./ ]", "_", name): x for name, x in numbers.items()}
        target.log_metrics(allowed, step=step)

    return write


def _optional(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this writer needs {module!r}, which is not installed: pip install 'sonde-jax[{extra}]'"
        ) from error
