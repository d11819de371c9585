"""The models of the libraries that are tried, and their inputs."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn

Inputs = Callable[[int], "tuple[Any, ...] | dict[str, Any]"]
"""Makes the positional arguments, or those by name, of a call with so many samples."""

LIBRARIES = ("torchvision", "timm", "transformers")
_VARIANTS = 4
"""The number of models that are tried of a file of torchvision, the smallest first."""
_LARGEST = 140e6
"""Parameters that one of them has at most."""
_SMALL = "test_ atto femto pico nano xxtiny xxs mini xtiny tiny xs small lite b0 18 14 26 s0 _s base".split()
"""Parts of the names of small models of timm, the smallest first."""
_NAMED = {"vision_transformer_sam": "samvit_base_patch16_224"}
"""Models of files of timm whose names do not say which is small."""
_CUT = ("deepseek_vit_412m", "gemma4_vit_167m", "qwen3_vit_88m")
"""Models of timm that have no small sibling: they are made with two layers."""


@dataclass(frozen=True, slots=True)
class LibraryModel:
    """A model of a library."""

    library: str
    """``"torchvision"``, ``"timm"`` or ``"transformers"``."""
    family: str
    """Its family: a file of torchvision or of timm, an architecture of transformers."""
    name: str
    """Its name in the library."""
    build: Callable[[], tuple[nn.Module, Inputs]]
    """Makes it, in evaluation mode, and the function that makes its inputs."""

    @property
    def attribute(self) -> str:
        """The name of its factory in :mod:`models.factories`."""
        return f"{self.library}__{re.sub(r'[^0-9a-zA-Z]', '_', self.name)}"


def all_models() -> Iterator[LibraryModel]:
    """The models of the libraries that are installed."""
    declare_operators()
    for find in (_torchvision, _timm, _transformers):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield from find()
        except ModuleNotFoundError as error:
            print(f"not tried: {error}")


@functools.cache
def declare_operators() -> torch.library.Library | None:
    """Declare what torchvision's own library would, where that was built for another torch: it is imported then.

    Where it is right it must be imported first: a process in which both declare them is aborted.
    """
    try:
        import_module("torchvision")
    except ModuleNotFoundError:
        return None
    except RuntimeError:  # operator torchvision::nms does not exist
        pass
    else:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for signature in ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
                      "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"):  # fmt: skip
        library.define(signature)
    return library


# torchvision.


def _torchvision() -> Iterator[LibraryModel]:
    models = import_module("torchvision.models")
    by_file: dict[str, list[str]] = {}
    for name in models.list_models():
        file = models.get_model_builder(name).__module__.removeprefix("torchvision.models.")
        if not file.startswith("quantization."):  # int8 already
            by_file.setdefault(file, []).append(name)
    for file, names in by_file.items():
        sizes = {name: models.get_model_weights(name).DEFAULT.meta["num_params"] for name in names}
        for name in sorted(names, key=sizes.__getitem__)[:_VARIANTS]:
            if sizes[name] <= _LARGEST:
                yield LibraryModel("torchvision", file, name, functools.partial(_build_torchvision, name, file))


def _build_torchvision(name: str, file: str) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(0)
    kind = file.partition(".")[0]
    others = {"weights_backbone": None} if kind in ("detection", "segmentation") else {}
    more = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    model = import_module("torchvision.models").get_model(name, weights=None, **others, **more)
    if kind == "detection":
        return model, lambda samples: ([_drawn(3, 128, 128) for _ in range(samples)],)
    if kind == "optical_flow":
        return model, lambda samples: (_drawn(samples, 3, 128, 128), _drawn(samples, 3, 128, 128))
    if kind == "video":
        size = 224 if name.startswith(("mvit", "s3d")) else 112
        return model, lambda samples: (_drawn(samples, 3, 16, size, size),)
    size = {"inception_v3": 299, "segmentation": 128}.get(name if kind != "segmentation" else kind, 224)
    return model, lambda samples: (_drawn(samples, 3, size, size),)


# timm.


def _timm() -> Iterator[LibraryModel]:
    timm = import_module("timm")
    visited: set[str] = set()
    for file in timm.list_modules():
        names = [name for name in timm.list_models(module=file) if name not in visited]
        if names:
            name = _NAMED.get(file) or min(names, key=_size_by_name)
            visited.add(name)
            yield LibraryModel("timm", file, name, functools.partial(_build_timm, name))


def _size_by_name(name: str) -> tuple[int, int]:
    return next((place for place, part in enumerate(_SMALL) if part in name), len(_SMALL)), len(name)


def _build_timm(name: str) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(0)
    model = import_module("timm").create_model(name, **({"depth": 2} if name in _CUT else {}))
    shape = model.pretrained_cfg["input_size"]
    return model, lambda samples: (_drawn(samples, *shape),)


# transformers.

_SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_WIDE = {**_SIZES, "intermediate_size": 32}
_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, **_IDS}
_T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, **_IDS}
_BART = {"vocab_size": 50, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32,
         "decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, **_IDS}  # fmt: skip
_IMAGE = {"image_size": 16, "patch_size": 4}
_CLIP_PART = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}

FAMILIES: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "bert": ("Bert", _WIDE, "encoder"),
    "roberta": ("Roberta", {**_WIDE, **_IDS}, "encoder"),
    "distilbert": ("DistilBert", {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}, "text"),
    "albert": ("Albert", {**_WIDE, "embedding_size": 8, **_IDS}, "encoder"),
    "electra": ("Electra", {**_WIDE, "embedding_size": 8}, "encoder"),
    "deberta-v2": ("DebertaV2", {**_WIDE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "encoder"),
    "gpt2": ("GPT2", _GPT2, "text"),
    "gpt_neo": (
        "GPTNeo",
        {"vocab_size": 50, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32,
         "attention_types": [[["global", "local"], 1]], **_IDS},
        "text",
    ),
    "gpt_neox": ("GPTNeoX", {**_WIDE, **_IDS}, "text"),
    "opt": (
        "OPT",
        {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32,
         "word_embed_proj_dim": 16, **_IDS},
        "text",
    ),
    "bloom": ("Bloom", {"vocab_size": 50, "hidden_size": 16, "n_layer": 2, "n_head": 2, **_IDS}, "text"),
    "llama": ("Llama", {**_WIDE, "num_key_value_heads": 1, **_IDS}, "text"),
    "mistral": ("Mistral", {**_WIDE, "num_key_value_heads": 1, **_IDS}, "text"),
    "qwen2": ("Qwen2", {**_WIDE, "num_key_value_heads": 1, **_IDS}, "text"),
    "gemma": ("Gemma", {**_WIDE, "num_key_value_heads": 1, "head_dim": 8, **_IDS}, "text"),
    "t5": ("T5", _T5, "two texts"),
    "bart": ("Bart", _BART, "two texts"),
    "vit": ("ViT", {**_CLIP_PART, **_IMAGE}, "image"),
    "clip": (
        "CLIP",
        {"text_config": {**_CLIP_PART, "vocab_size": 50, **_IDS}, "vision_config": {**_CLIP_PART, **_IMAGE},
         "projection_dim": 8},
        "image and text",
    ),
}  # fmt: skip
"""For each architecture: the prefix of its classes, its settings, and its inputs."""


def _transformers() -> Iterator[LibraryModel]:
    import_module("transformers")
    for family in FAMILIES:
        yield LibraryModel("transformers", family, family, functools.partial(_build_transformers, family))


def _build_transformers(family: str) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(0)
    library = import_module("transformers")
    name, settings, takes = FAMILIES[family]
    model = getattr(library, f"{name}Model")(getattr(library, f"{name}Config")(**settings))
    return model, _KINDS[takes]


def _ids(samples: int) -> torch.Tensor:
    return torch.randint(3, 50, (samples, 7), generator=torch.Generator().manual_seed(0))


def _mask(samples: int) -> torch.Tensor:
    """Return which of the tokens count: all of two samples, and of a third one all but the last two.

    Without a token that does not count, models make no mask: what is captured so must not be for others.
    """
    mask = torch.ones(samples, 7, dtype=torch.int64)
    mask[2:, -2:] = 0
    return mask


_KINDS: Mapping[str, Inputs] = {
    "text": lambda samples: {"input_ids": _ids(samples)},
    "encoder": lambda samples: {
        "input_ids": _ids(samples),
        "attention_mask": _mask(samples),
    },
    "two texts": lambda samples: {"input_ids": _ids(samples), "decoder_input_ids": _ids(samples)[:, :5]},
    "image": lambda samples: {"pixel_values": _drawn(samples, 3, 16, 16)},
    "image and text": lambda samples: {"input_ids": _ids(samples), "pixel_values": _drawn(samples, 3, 16, 16)},
}


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
