"""Models whose places become programs: the user's, building blocks, and small ones if those are not enough."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import model_zoo
from fx.arguments import refusal
from pytest_fx.collection import ModelCase, cases_of
from pytest_fx.errors import CannotLoadError, InputError
from pytest_fx.factories import load_subject
from pytest_fx.harness.subject import Subject
from pytest_fx.option_table import TABLE, GivenModel
from pytest_fx.options import Options

_OPTIONS = Options(
    models=(), passes=(), device="cpu", dtype=None, batch=(), threads=(1,), contract=None, rtol=None, atol=None,
    rounds=1, budget=0.0, timing=False, size="full", seed=0,
)  # fmt: skip
"""Defaults for loading models."""
_MODELS = "give names, package.module:factory, factories, or pairs (module, inputs): models=[(module, inputs)]"


def load_models(models: Any, modes: Sequence[str]) -> list[Subject]:
    """Return the models of ``models=`` of a search.

    Args:
        models: one or several, each in a form that ``--fx-model`` accepts, or loaded already.
        modes: the modes of the programs; models are in evaluation mode if that is among them.

    Raises:
        FxError: there is no such model, it has no example inputs, or it cannot be captured.
    """
    subjects: list[Subject] = []
    for model in next(option for option in TABLE if option.flag == "model").read(models):
        if isinstance(model, Subject):
            subjects.append(model)
        elif isinstance(model, str) or callable(model):
            cases = cases_of(replace(_OPTIONS, models=(model,)), Path.cwd())
            subjects += (load_subject(case.in_mode(_mode_of(modes))) for case in cases)
        else:
            raise refusal("models= takes models", model, error=CannotLoadError, remedy=_MODELS)
    for subject in subjects:
        if not subject.has_inputs:
            raise InputError(
                f"no place can be cut out of {subject.name}: it has no example inputs",
                why="what a place reads gets the shapes and dtypes that it has when the model is called",
                remedy="give a pair (module, inputs), or a factory that returns one",
            )
        if subject.capture_error is not None:
            raise subject.capture_error
    return subjects


def building_blocks(modes: Sequence[str], most: int) -> Iterator[Subject]:
    """Yield building blocks of the zoo, some of each field if there are more than ``most``, each built on request."""
    blocks = list(model_zoo.blocks())
    for name, build, inputs in blocks[:: max(1, -(-len(blocks) // most))]:
        with model_zoo.seeded(0):
            model = GivenModel((build(), inputs))
        yield load_subject(ModelCase.of(model, _OPTIONS, name=name).in_mode(_mode_of(modes)))


def small_models(modes: Sequence[str]) -> Iterator[Subject]:
    """Yield the small models of the zoo, then those of installed libraries, each built on request."""
    for name in model_zoo.models_with_tag("small"):
        yield load_subject(ModelCase.of(name, _OPTIONS).in_mode(_mode_of(modes)))
    for library, models in _LIBRARIES.items():
        if importlib.util.find_spec(library) is not None:
            yield from filter(None, (_of_library(library, name, make, modes) for name, make in models.items()))


def _mode_of(modes: Sequence[str]) -> str:
    """Return the mode of models: evaluation if it is among the modes of programs."""
    return "eval" if "eval" in modes else "train"


def _of_library(library: str, name: str, make: Callable[[Any], _Model], modes: Sequence[str]) -> Subject | None:
    """Return a model of a library; None if the installed version has no such model, or does not load."""
    try:
        with warnings.catch_warnings(), model_zoo.seeded(0):
            warnings.simplefilter("ignore")
            module, inputs = make(importlib.import_module(library))
            case = ModelCase.of(GivenModel((module, inputs)), _OPTIONS, name=f"{library} {name}")
            subject = load_subject(case.in_mode(_mode_of(modes)))
    except Exception:  # the library may raise anything
        return None
    return subject if subject.capture_error is None else None


_Model = tuple[nn.Module, Any]
"""A model and its example inputs."""


def _of_torchvision(name: str) -> Callable[[Any], _Model]:
    return lambda library: (
        library.models.get_model(name, weights=None).eval(),
        torch.ones(1, 3, 64, 64).cumsum(3).sin(),
    )


def _of_timm(name: str) -> Callable[[Any], _Model]:
    def make(library: Any) -> _Model:
        model = library.create_model(name).eval()
        return model, torch.ones(1, *model.pretrained_cfg["input_size"]).cumsum(3).sin()

    return make


def _of_transformers(name: str, **sizes: Any) -> Callable[[Any], _Model]:
    def make(library: Any) -> _Model:
        settings = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **sizes}
        model = getattr(library, f"{name}Model")(getattr(library, f"{name}Config")(**settings)).eval()
        tokens = torch.arange(3, 10).reshape(1, 7)
        return model, {"input_ids": tokens, **({"decoder_input_ids": tokens} if "d_kv" in sizes else {})}

    return make


_WIDE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_LIBRARIES: Mapping[str, Mapping[str, Callable[[Any], _Model]]] = {
    "torchvision": {
        name: _of_torchvision(name) for name in ("shufflenet_v2_x0_5", "mobilenet_v3_small", "squeezenet1_1", "swin_t")
    },
    "timm": {
        name: _of_timm(name) for name in ("test_vit", "test_convnext", "test_efficientnet", "test_resnet", "test_nfnet")
    },
    "transformers": {
        "bert": _of_transformers("Bert", **_WIDE),
        "gpt2": _of_transformers("GPT2", n_embd=16, n_layer=1, n_head=2),
        "llama": _of_transformers("Llama", **_WIDE, num_key_value_heads=1),
        "t5": _of_transformers("T5", d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2),
    },
}
"""Models of libraries that are built in a moment, each of another kind."""
