"""Programs that return containers and objects of all kinds."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import nn

from .programs import program, rows


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


@program(rows)
def named_tuple(x):
    return Pair(x, x * 2)


@program(rows)
def named_tuple_with_default(x):
    return Point(x, y=x + 1)


@program(rows)
def named_tuple_replaced(x):
    return Pair(x, x)._replace(second=x * 5)


@program(rows)
def data_class(x):
    return Output(x, loss=x.sum())


@program(rows)
def frozen_data_class(x):
    return Frozen(x * 2)


@program(rows)
def plain_dict(x):
    return {"a": x, "b": {"c": [x * 2, (x * 3,)]}}


@program(rows)
def dict_with_number_keys(x):
    return {0: x, 1: x * 2, (2, "a"): x * 3}


@program(rows)
def ordered_dict(x):
    out = OrderedDict()
    out["z"] = x
    out["a"] = x * 2
    return out


@program(rows)
def default_dict(x):
    out = defaultdict(list)
    out["a"].append(x)
    return out


@program(rows)
def user_dict(x):
    return UserDict(a=x)


@program(rows)
def dict_subclass(x):
    return Settings(a=x, b=2)


@program(rows)
def list_subclass(x):
    return NamedList([x, x * 2])


@program(rows)
def model_output(x):
    return ModelOutput(logits=x * 2, hidden=x)


@program(rows)
def model_output_inside(x):
    return [ModelOutput(logits=x * 2), 5]


@program(rows)
def user_object(x):
    return Holder(x * 2, x > 0)


@program(rows)
def namespace(x):
    return SimpleNamespace(a=x, b=3)


@program(rows)
def double_ended(x):
    return deque([x, x * 2])


@program(rows)
def set_of_numbers(x):
    return x, {1, 2}


@program(rows)
def generator_result(x):
    return (x * factor for factor in (1, 2))


@program(rows)
def list_of_generator(x):
    return list(x * factor for factor in (1, 2))


@program(rows)
def shape_result(x):
    return x.shape, x.size(0), x.dtype


@program(rows)
def constants_only(x):
    return x, 1, "a", None, 2.5, True


@program(rows)
def same_twice(x):
    y = x * 2
    return y, y


@program(rows)
def input_itself(x):
    return x


@program(rows)
def nothing(x):
    return None


@program(rows)
def constant_tensor(x):
    return torch.ones(3)


@program(rows)
def constant_made_anew(x):
    y = torch.ones(3)
    y += 1
    return y, x


@program(rows)
def slice_result(x):
    return slice(0, x.shape[0]), x


@program(rows)
def range_result(x):
    return range(3), x


@program(rows)
def size_made(x):
    return torch.Size([x.shape[0], 3]), x


@program(rows)
def return_type(x):
    return torch.max(x, dim=0)


@program(rows)
def return_type_field(x):
    return x.sort(dim=-1).values


@program(rows)
def function_result(x):
    return torch.relu, x


@program(rows)
def string_result(x):
    return f"shape {tuple(x.shape)}", x


@program(rows)
class FieldsOfOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

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


@program(rows)
class ModuleInResult(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(x), self.layer.in_features
