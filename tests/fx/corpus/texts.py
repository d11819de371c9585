"""Programs that make text of traced values, and decide by it, or only say something with it."""

from __future__ import annotations

import logging

import torch
from torch import nn

from .programs import one_liners, program, rows

SCALES = {"n2": 2.0, "n5": 5.0}


one_liners(
    rows,
    key_formatted=lambda x: x * SCALES[f"n{x.shape[0]}"],
    key_formatted_default=lambda x: x * SCALES.get(f"n{x.shape[0]}", 7.0),
    key_concatenated=lambda x: x * SCALES.get("n" + str(x.shape[0]), 7.0),
    key_by_format=lambda x: x * SCALES.get("n{}".format(x.shape[0]), 7.0),
    key_by_percent=lambda x: x * SCALES.get("n%s" % x.shape[0], 7.0),
    key_by_percent_of_two=lambda x: x * SCALES.get("%s%s" % ("n", x.shape[0]), 7.0),
    key_joined=lambda x: x * SCALES.get("".join(["n", str(x.shape[0])]), 7.0),
    key_joined_of_many=lambda x: x * {"2x6": 2.0, "5x6": 5.0}.get("x".join(str(size) for size in x.shape[:2]), 7.0),
    text_compared=lambda x: x * 2 if f"n{x.shape[0]}" == "n2" else x * 3,
    text_of_dtype_compared=lambda x: x * 2 if f"kind:{x.dtype}" == "kind:torch.float32" else x * 3,
    key_of_function=lambda x: x * SCALES.get(_named(x), 7.0),
    text_measured=lambda x: x * len(f"{x.shape[0]}"),
    text_of_text_measured=lambda x: x * len(str(x.shape[0])),
)


@program(rows)
def key_formatted_again(x):
    inner = f"{x.shape[0]}"
    return x * SCALES.get(f"n{inner}", 7.0)


@program(rows)
def key_in_variable(x):
    key = f"n{x.shape[0]}"
    if key in SCALES:
        return x * SCALES[key]
    return x


def _named(x):
    return f"n{x.shape[0]}"


@program(rows)
def text_in_list(x):
    parts = []
    parts.append(f"n{x.shape[0]}")
    return x * 2 if "n2" in parts else x


@program(rows)
class AttributeByText(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale2, self.scale5 = 2.0, 5.0

    def forward(self, x):
        return x * getattr(self, f"scale{x.shape[0]}")


@program(rows)
class AttributeByTextOrDefault(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale2, self.scale5 = 2.0, 5.0

    def forward(self, x):
        return x * getattr(self, "scale" + str(x.shape[0]), 7.0)


@program(rows)
class LayerByText(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"n2": nn.Linear(6, 6), "n5": nn.Linear(6, 6)})

    def forward(self, x):
        name = f"n{x.shape[0]}"
        return self.layers[name](x) if name in self.layers else x


@program(rows)
class TextKept(nn.Module):
    def __init__(self):
        super().__init__()
        self.note = ""

    def forward(self, x):
        self.note = f"n{x.shape[0]}"
        return x * 2 if self.note == "n2" else x * 3


@program(rows)
def text_asserted(x):
    assert x.shape[1] == 6, f"six columns, not {x.shape[1]}"
    return x * 2


@program(rows)
def text_raised(x):
    message = f"six columns, not {x.shape[1]}"
    if x.shape[1] != 6:
        raise ValueError(message)
    return x * 2


@program(rows)
def text_of_torch_assert(x):
    torch._assert(x.shape[1] == 6, f"six columns, not {x.shape[1]}")
    return x * 2


@program(rows)
def text_logged(x):
    logging.getLogger(__name__).debug(f"shape {x.shape}")
    return x * 2


@program(rows)
def text_never_used(x):
    _ = f"shape {x.shape}"
    return x * 2


@program(rows)
def text_of_a_region(x):
    with torch.profiler.record_function(f"block of {x.shape[0]}"):
        return x * 2


@program(rows)
def text_in_unused_branch(x):
    scale = 2
    if scale != 2:
        raise ValueError(f"scale {scale} for {x.shape[0]}")
    return x * scale
