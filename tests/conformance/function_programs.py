"""Programs about signatures, outputs, wrapped functions, constants of Python's own types and specialization."""

# No ``from __future__ import annotations``: annotations must reach the libraries as objects; one program has strings.

import collections
import dataclasses
import enum
import functools
import typing
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union  # noqa: UP035

import torch

from .libraries import LIBRARIES
from .programs import given, matrix, program, vector


class Point(NamedTuple):
    """A named tuple that goes through graphs."""

    x: Any
    y: Any


class Mode(enum.Enum):
    """An enumeration used as an argument."""

    PLAIN = 1
    SCALED = "scaled"


@dataclasses.dataclass
class Settings:
    """A dataclass used as an argument."""

    scale: Any
    shift: float = 0.5


def leaf(x, factor=2.0):
    """Stay one node."""
    return x * factor if bool((x.sum() > 0).item()) else x


def leaf_of_pair(pair, *rest, **options):
    """Stay one node, whatever is nested in the arguments."""
    return pair[0] + pair[1] + sum(rest) + sum(options.values())


def leaf_of_objects(x, mode=None, settings=None, point=None, indices=None, mapping=None):
    """Stay one node; takes values of many types."""
    x = x if mode is not Mode.SCALED else x * 2
    x = x if settings is None else x * settings.scale + settings.shift
    x = x if point is None else x + point.x - point.y
    x = x if indices is None else x + len(indices)
    return x if mapping is None else x + mapping["a"][0]


def decorated_leaf(x):
    """Be wrapped by decoration."""
    return x.flip(0)


for _library in LIBRARIES:
    _library.wrap("leaf")
    _library.wrap("leaf_of_pair")
    _library.wrap("leaf_of_objects")
    _library.wrap("len")
    decorated_leaf = _library.wrap(decorated_leaf)


@program(vector)
def defaults(x, scale=2.0, *, flag=True, nothing=None, text="é\n'\""):
    return x * scale


@program(vector, keywords={"scale": 3.0, "shift": 1.0})
def keyword_only(x, *, scale, shift=0.5):
    return x * scale + shift


@program(vector, vector, vector)
def variadic(x, *rest):
    return x + rest[0] * rest[1]


@program(vector, keywords={"bias": 2.0})
def keyword_variadic(x, **options):
    return x + options["bias"]


@program(vector, keywords={"bias": 2.0, "scale": 3.0})
def every_kind_of_parameter(x, *rest, scale=2.0, **options):
    return x * scale + options["bias"]


@program(vector, vector, vector)
def clashing_parameters(input, sum, max):
    return torch.sum(input) + sum + max.sum()


@program(vector, vector)
def parameters_named_like_nodes(add, relu_1):
    return torch.relu(add + relu_1) + torch.relu(add)


@program(vector, vector)
def oddly_named_parameters(Upper, _private, x__y=None, x1=1, camelCase=2):
    return Upper + _private + camelCase


@program(vector, given(None))
def unused_parameters(x, y, z=3):
    return x.neg()


@program(vector)
def annotated(x: torch.Tensor, scale: float = 2.0, count: int = 1) -> torch.Tensor:
    return x * scale * count


@program(given([vector(), vector()]), given({"a": vector()}))
def annotated_containers(
    xs: List[torch.Tensor],  # noqa: UP006
    mapping: Dict[str, torch.Tensor],  # noqa: UP006
    maybe: Optional[torch.Tensor] = None,  # noqa: UP045
    either: Union[int, float] = 1,  # noqa: UP007
    names: list[int] | None = None,
) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
    return xs[0] + mapping["a"], xs[1]


@program(vector)
def annotated_with_strings(x: "torch.Tensor", y: "int" = 2):
    return x + y


@program(vector)
def annotated_with_anything(x: typing.Any, f: typing.Callable[..., int] = None, p: Point = None) -> Point:  # noqa: RUF013
    return Point(x, x + 1)


@program(vector)
def nested_outputs(x):
    return {"list": [x, (x + 1,)], "tuple": (x, None, 3, "text"), 5: {"inner": x.neg()}}


@program(vector)
def list_output(x):
    return [x, x]


@program(vector)
def named_tuple_output(x):
    return Point(x + 1, [x])


@program(vector)
def constant_output(x):
    return 3.5, "text", None, True, torch.float16, ...


@program(vector)
def no_output(x):
    x.neg()


@program(vector)
def same_input_output(x):
    return x


@program()
def no_input():
    return torch.ones(2) + 1


@program(vector)
def dead_code(x):
    unused = x * 2
    _ = unused + 1
    torch.relu(x)
    return x.neg()


@program(vector)
def unrolled(x):
    for index in range(3):
        x = x + index
    return [x * factor for factor in (1, 2)]


@program(vector)
def static_branches(x):
    y = None
    if y is None and x is not None:
        x = x + 1
    return x.neg() if isinstance(y, torch.Tensor) else x


@program(vector)
def wrapped_calls(x):
    return leaf(x), leaf(x, 3.0), leaf(x=x), leaf(2 * x, factor=1.5), decorated_leaf(x)


@program(vector)
def wrapped_with_nested_arguments(x):
    return leaf_of_pair((x, x)), leaf_of_pair([x, 1], x, 2, k=x), leaf_of_pair(Point(x, 1))


@program(vector)
def wrapped_builtin(x):
    return x + len(x), len([1, 2, 3])


@program(vector)
def wrapped_without_traced_arguments(x):
    return x + leaf(torch.tensor([1.0]))


@program(vector)
def enumerations(x):
    return leaf_of_objects(x, Mode.PLAIN), leaf_of_objects(x, mode=Mode.SCALED)


@program(vector)
def dataclass_arguments(x):
    return leaf_of_objects(x, settings=Settings(x, 2.5)), leaf_of_objects(x, settings=Settings(3))


@program(vector)
def other_containers(x):
    y = leaf_of_objects(x, indices=range(3), point=Point(1, x))
    return leaf_of_objects(y, indices=(1, [2, {"k": 3}], slice(1, None), ...), mapping={"a": [x], "b": {1: (2,)}})


@program(matrix)
def containers_of_other_classes(x):
    return leaf_of_objects(x, mapping=collections.OrderedDict(a=[x])), leaf_of_objects(x, indices=torch.Size([1, 2]))


def twice(function):
    """Decorate with the signature kept visible through ``functools.wraps``."""

    @functools.wraps(function)
    def decorated(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return decorated


@program(vector)
@twice
def decorated_function(x, shift=1.0):
    return x + shift


@program(vector)
def calls_of_calls(x):
    def inner(y):
        return y.relu() + 1

    return inner(inner(x)).sin()


@program(vector, given(2), concrete_args=lambda library: {"y": 2})
def specialized_number(x, y):
    return x * y if y == 2 else x


@program(vector, given(None), concrete_args=lambda library: {"y": None}, retraces_in_torch_fx=False)
def specialized_none(x, y):
    return x if y is None else x + y


@program(vector, given(True), given("text"), concrete_args=lambda library: {"flag": True, "text": "text"})
def specialized_flag_and_text(x, flag, text):
    return x.neg() if flag and text == "text" else x


@program(
    given({"a": vector(), "b": [vector(), vector()]}),
    vector,
    concrete_args=lambda library: {"tree": {"a": library.PH, "b": [library.PH, library.PH]}},
    retraces_in_torch_fx=False,
)
def specialized_tree(tree, x):
    return {"sum": tree["a"] + tree["b"][0], "rest": [tree["b"][1], x]}


@program(
    given((vector(), 3)),
    concrete_args=lambda library: {"pair": (library.PH, 3)},
    retraces_in_torch_fx=False,
)
def specialized_pair(pair):
    return pair[0] * pair[1]


@program(vector, given(4), concrete_args=lambda library: (library.PH, 4))
def specialized_by_position(x, y):
    return x * y
