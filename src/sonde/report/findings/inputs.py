"""Inputs whose scale does not suit a network: not centered, not scaled, one feature larger than all others, missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sonde.report.arguments import Argument
from sonde.report.findings.finding import Finding
from sonde.report.findings.thresholds import CONSTANT_SIZE, FEATURE_RATIO, INPUT_OFFSET, INPUT_RMS

_SCALE = (
    "Networks are initialized for inputs with a mean near 0 and a deviation near 1: subtract the mean and divide by "
    "the deviation, or divide bytes by 255."
)
_FEATURE = "Scale every feature by itself: the largest one decides the first layer's result and its gradient."
_ZERO = "Look at the code that loads the data: a placeholder, a mask, or a conversion to integers leaves zeros."
_BAD = "Look at the data: a missing entry, a division by a zero deviation, or a logarithm of zero."
_BYTE = 255


def inputs(arguments: Sequence[Argument]) -> list[Finding]:
    """Findings about the inputs of a program that has weights; simulations and plain functions have none."""
    if not any(a.is_weight and len(a.shape) > 1 for a in arguments):
        return []
    findings: list[Finding] = []
    for argument in arguments:
        if not argument.is_weight and argument.size >= CONSTANT_SIZE:
            finding = _bad(argument) or _zero(argument) or _feature(argument) or _scale(argument)
            findings += [finding] if finding is not None else []
    return findings


def _bad(argument: Argument) -> Finding | None:
    if not argument.nonfinite:
        return None
    text = f"{argument.nonfinite} of {argument.size} elements of the input {argument.path} are NaN or infinite."
    return Finding("problem", "bad-inputs", argument.path, text, _BAD, weight=1.0)


def _zero(argument: Argument) -> Finding | None:
    if argument.low != argument.high:
        return None
    text = f"Every element of the input {argument.path} is {argument.high:.4g}."
    return Finding("warning", "constant-inputs", argument.path, text, _ZERO, weight=1.0)


def _feature(argument: Argument) -> Finding | None:
    if argument.feature_rms is None or len(argument.feature_rms) < 3:
        return None
    usual, largest = float(np.median(argument.feature_rms)), int(np.argmax(argument.feature_rms))
    peak = float(argument.feature_rms[largest])
    if usual == 0 or peak / usual < FEATURE_RATIO:
        return None
    text = f"Feature {largest} of the input {argument.path} has an rms of {peak:.3g}, the median feature {usual:.3g}."
    return Finding("warning", "inputs-not-scaled", argument.path, text, _FEATURE, weight=math.log10(peak / usual))


def _scale(argument: Argument) -> Finding | None:
    deviation = math.sqrt(max(argument.rms**2 - argument.mean**2, 0.0))
    span = f"{argument.low:.4g} to {argument.high:.4g}, rms {argument.rms:.3g}"
    if argument.rms > INPUT_RMS:
        is_bytes = argument.of_whole_numbers and argument.low >= 0 and argument.high <= _BYTE
        text = f"The input {argument.path} is not scaled: {span}{', as bytes are' if is_bytes else ''}."
    elif argument.rms > 1 and abs(argument.mean) > INPUT_OFFSET * deviation:
        text = f"The input {argument.path} is far from zero, compared with its deviation of {deviation:.2g}: {span}."
    else:
        return None
    return Finding("warning", "inputs-not-scaled", argument.path, text, _SCALE, weight=math.log10(argument.rms))
