"""Programs that return containers and objects of all kinds."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import nn

from .programs import Layered, one_liners, program, rows


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


Point = namedtuple("Point", "x y z", defaults=(3,))


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    names: list = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    value: torch.Tensor
    scale: float = 2.0


class ModelOutput(OrderedDict):
    """As the library of transformers has it: a mapping whose entries are attributes too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to_tuple(self):
        return tuple(self.values())


class Holder:
    def __init__(self, tensor, mask):
        self.tensor = tensor
        self.mask = mask


class NamedList(list):
    pass


class Settings(dict):
    pass


one_liners(
    rows,
    named_tuple=lambda x: Pair(x, x * 2),
    named_tuple_with_default=lambda x: Point(x, y=x + 1),
    named_tuple_replaced=lambda x: Pair(x, x)._replace(second=x * 5),
    data_class=lambda x: Output(x, loss=x.sum()),
    frozen_data_class=lambda x: Frozen(x * 2),
    plain_dict=lambda x: {"a": x, "b": {"c": [x * 2, (x * 3,)]}},
    dict_with_number_keys=lambda x: {0: x, 1: x * 2, (2, "a"): x * 3},
    user_dict=lambda x: UserDict(a=x),
    dict_subclass=lambda x: Settings(a=x, b=2),
    list_subclass=lambda x: NamedList([x, x * 2]),
    model_output=lambda x: ModelOutput(logits=x * 2, hidden=x),
    model_output_inside=lambda x: [ModelOutput(logits=x * 2), 5],
    user_object=lambda x: Holder(x * 2, x > 0),
    namespace=lambda x: SimpleNamespace(a=x, b=3),
    double_ended=lambda x: deque([x, x * 2]),
    set_of_numbers=lambda x: (x, {1, 2}),
    generator_result=lambda x: (x * factor for factor in (1, 2)),
    list_of_generator=lambda x: list(x * factor for factor in (1, 2)),
    shape_result=lambda x: (x.shape, x.size(0), x.dtype),
    constants_only=lambda x: (x, 1, "a", None, 2.5, True),
    input_itself=lambda x: x,
    nothing=lambda x: None,
    constant_tensor=lambda x: torch.ones(3),
    slice_result=lambda x: (slice(0, x.shape[0]), x),
    range_result=lambda x: (range(3), x),
    size_made=lambda x: (torch.Size([x.shape[0], 3]), x),
    return_type=lambda x: torch.max(x, dim=0),
    return_type_field=lambda x: x.sort(dim=-1).values,
    function_result=lambda x: (torch.relu, x),
    string_result=lambda x: (f"shape {tuple(x.shape)}", x),
)


@program(rows)
def default_dict(x):
    out = defaultdict(list)
    out["a"].append(x)
    return out


@program(rows)
def same_twice(x):
    y = x * 2
    return y, y


@program(rows)
def constant_made_anew(x):
    y = torch.ones(3)
    y += 1
    return y, x


@program(rows)
class FieldsOfOutput(Layered):
    def forward(self, x):
        out = ModelOutput(logits=self.layer(x))
        return out.logits + out["logits"]


@program(rows)
class OrderedFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)

    def forward(self, x):
        features = OrderedDict()
        for name in ("a", "b"):
            x = getattr(self, name)(x)
            features[name] = x
        return features


@program(rows)
class OrderedFeaturesPassedOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = OrderedFeatures()

    def forward(self, x):
        features = self.body(x)
        return list(features.values())[-1], features


@program(rows)
class ParameterItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.weight, x
