"""Files of answers: one safetensors file whose header is JSON, for several models."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from fx.serialization.allow_list import Refused
from fx.serialization.tensor_file import DTYPES, parse_json, read_tensor_file, write_tensor_file
from pytest_fx.errors import AnswerError
from pytest_fx.harness.structure import leaves

FORMAT, VERSION = "pytest-fx answers", 1
Flat = dict[str, Any]
"""The leaves of a nested value by their paths: tensors, numbers, texts and None."""


@dataclass(frozen=True, slots=True)
class LayerAnswer:
    """The output of one call of a layer."""

    path: str
    """The path of the module."""
    kind: str
    """The name of its class."""
    value: Flat
    """Its output."""
    value64: Flat
    """Its output in float64; empty if the model does not run in float64."""


@dataclass(frozen=True, slots=True)
class AnswerSet:
    """The answers to one set of inputs."""

    args: Flat
    """The positional arguments."""
    kwargs: Flat
    """The keyword arguments."""
    output: Flat
    """The output."""
    output64: Flat
    """The output in float64; empty if the model does not run in float64."""
    errors: dict[str, float]
    """The largest rounding error of each output in the working dtype, if it is known."""
    layers: tuple[LayerAnswer, ...]
    """The outputs of chosen layers, in the order of their calls."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one model."""

    model: str
    """The name of the model."""
    mode: str
    """``"eval"`` or ``"train"``."""
    machine: dict[str, Any]
    """The machine, as records describe it."""
    state: dict[str, str]
    """A digest of each parameter and buffer, by name."""
    sets: tuple[AnswerSet, ...]
    """The answers to each set of inputs."""


def flat(value: Any) -> Flat:
    """Return the leaves of a nested value by their paths.

    Raises:
        AnswerError: a leaf is neither a dense tensor nor a number, text or None.
    """
    by_path: Flat = {}
    for path, leaf in leaves(value):
        is_dense = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_quantized
        if not is_dense and not isinstance(leaf, (bool, int, float, str, type(None))):
            raise AnswerError(
                f"an input or output{path} cannot be saved",
                why=f"it is of class {type(leaf).__name__}, and a file of answers holds dense tensors and numbers",
            )
        by_path[path] = leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf
    return by_path


def write_answers(path: str | os.PathLike[str], answers: Sequence[Answers]) -> None:
    """Replace a file by one with these answers, in one step.

    Raises:
        AnswerError: a tensor has a dtype that the format lacks.
        OSError: the file cannot be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    models = [_model_as_data(each, tensors) for each in answers]
    text = json.dumps({"format": FORMAT, "version": VERSION, "models": models}, separators=(",", ":"))
    try:
        write_tensor_file(path, text, tensors)
    except Refused as refused:
        raise refused.as_error(AnswerError, f"the answers cannot be saved as {path}") from None


def read_answers(path: str | os.PathLike[str]) -> list[Answers]:
    """Read a file of answers. It is safe to read files from anyone.

    Raises:
        AnswerError: it is no file of answers, or damaged.
        OSError: it cannot be read.
    """
    try:
        text, tensors = read_tensor_file(path)
        data = parse_json(text)
        if not isinstance(data, dict) or cast("Flat", data).get("format") != FORMAT:
            raise Refused("it holds no answers", why="--fx-save-answers writes such files")
        if cast("Flat", data).get("version") != VERSION:
            raise Refused("it is of another version of the format", why=f"this version reads {VERSION}")
        return [_model_of_data(each, tensors) for each in cast("Flat", data)["models"]]
    except Refused as refused:
        raise refused.as_error(AnswerError, f"{path} is no file of answers") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise AnswerError(f"{path} is a damaged file of answers", why=why[:200]) from None


def _model_as_data(answers: Answers, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        "model": answers.model,
        "mode": answers.mode,
        "machine": answers.machine,
        "state": answers.state,
        "sets": [
            {
                **{name: _as_data(getattr(each, name), tensors) for name in _FLAT},
                "errors": {path: repr(error) for path, error in each.errors.items()},
                "layers": [
                    {
                        "path": layer.path,
                        "kind": layer.kind,
                        "value": _as_data(layer.value, tensors),
                        "value64": _as_data(layer.value64, tensors),
                    }
                    for layer in each.layers
                ],
            }
            for each in answers.sets
        ],
    }


_FLAT = ("args", "kwargs", "output", "output64")


def _as_data(values: Flat, tensors: dict[str, torch.Tensor]) -> list[list[Any]]:
    """Return each leaf as its path, its kind, and its text; tensors are added to ``tensors``."""
    stored: list[list[Any]] = []
    for path, leaf in values.items():
        if isinstance(leaf, torch.Tensor):
            name = f"t{len(tensors)}"
            tensors[name] = _stored(leaf, path)
            stored.append([path, "complex" if leaf.is_complex() else "tensor", name])
        else:
            kind = next(name for name, scalar in _SCALARS.items() if isinstance(leaf, scalar))
            stored.append([path, kind, leaf if isinstance(leaf, str) else repr(leaf)])
    return stored


def _stored(tensor: torch.Tensor, path: str) -> torch.Tensor:
    """Return a contiguous copy as the format has it: parts of complex numbers in a further dimension."""
    plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.resolve_neg()
    if plain.dtype not in DTYPES.values():
        raise AnswerError(f"the tensor at {path or 'the output'} cannot be saved", why=f"it is of dtype {plain.dtype}")
    return plain.contiguous().clone()


def _model_of_data(data: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Answers:
    sets = tuple(
        AnswerSet(
            _of_data(each["args"], tensors),
            _of_data(each["kwargs"], tensors),
            _of_data(each["output"], tensors),
            _of_data(each["output64"], tensors),
            {_text(path): float(error) for path, error in each["errors"].items()},
            tuple(
                LayerAnswer(
                    _text(layer["path"]),
                    _text(layer["kind"]),
                    _of_data(layer["value"], tensors),
                    _of_data(layer["value64"], tensors),
                )
                for layer in each["layers"]
            ),
        )
        for each in data["sets"]
    )
    state = {_text(name): _text(digest) for name, digest in data["state"].items()}
    return Answers(_text(data["model"]), _text(data["mode"]), dict(data["machine"]), state, sets)


_SCALARS: dict[str, type[Any]] = {"none": type(None), "bool": bool, "int": int, "float": float, "str": str}
"""The kinds of leaves besides tensors; ``bool`` comes before ``int``, whose subclass it is."""
_READ: dict[str, Any] = {
    "none": {"None": None}.__getitem__,
    "bool": {"True": True, "False": False}.__getitem__,
    "int": int,
    "float": float,
}


def _of_data(stored: Sequence[Sequence[Any]], tensors: Mapping[str, torch.Tensor]) -> Flat:
    values: Flat = {}
    for path, kind, text in stored:
        if kind in ("tensor", "complex"):
            values[_text(path)] = torch.view_as_complex(tensors[text]) if kind == "complex" else tensors[text]
        else:
            values[_text(path)] = _text(text) if kind == "str" else _READ[kind](text)
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is no text")
    return value
