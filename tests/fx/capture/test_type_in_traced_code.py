"""``type`` in traced code, except for the class of a traced value: it works as in Python."""

import functools
import inspect

import pytest
import torch

import fx


class Meta(type):
    def __call__(cls, *args):
        return type.__call__(cls, *args)


class Holder(metaclass=Meta):
    def __init__(self, value=3.0):
        self.value = value


BY_KIND = {type: 1.0, int: 2.0}


def dispatched(x):
    @functools.singledispatch
    def kind(value):
        return 1.0

    kind.register(type)(lambda value: 5.0)
    return x + kind(int)


PROGRAMS = {
    "a metaclass calls it": lambda x: x + Holder().value,
    "its dictionary": lambda x: x + len(type.__dict__["__mro__"].__get__(Holder)),
    "its methods": lambda x: x + len(type.mro(Holder)),
    "an attribute by it": lambda x: x + (type.__getattribute__(Holder, "__init__") is Holder.__init__),
    "its name": lambda x: x + len(type.__name__) + len(type.__module__),
    "its text": lambda x: x + len(repr(type)),
    "the class of a class": lambda x: x + (type(int) is type) + 2 * (type(Holder) is type),
    "a class beside the class of a class": lambda x: x + (type is type(int)) + (type(int) is not type),
    "the class of a class, equal": lambda x: x + (type(int) == type),  # noqa: E721
    "a class of a class that was kept": lambda x: x + ([type(item) for item in (1, int)][1] is type),
    "an entry of a dict": lambda x: x + BY_KIND[type] + BY_KIND[type(int)],
    "among others": lambda x: x + (type in (int, type)) + isinstance(int, (type, str)) + issubclass(Meta, type),
    "a union": lambda x: x + isinstance(int, type | None),
    "a new class": lambda x: x + type("New", (), {"value": 4.0}).value,
    "a dispatched function": dispatched,
    "inspect": lambda x: x + (inspect.getattr_static(Holder, "__init__", None) is None) + inspect.isclass(type),
    "a signature": lambda x: x + len(inspect.signature(dispatched).parameters),
}


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_type_works_as_in_python(name, guided):
    function, x = PROGRAMS[name], torch.ones(2, 3)
    program = fx.symbolic_trace(function, example_inputs=(x,) if guided else None)
    assert torch.equal(program(x), function(x))


def test_inspect_works_while_its_own_code_is_traced():
    def forward(x):
        return x + len(inspect.getmembers(Holder, inspect.isfunction)) + isinstance(x, torch.Tensor)

    x = torch.ones(2)
    assert torch.equal(fx.symbolic_trace(forward)(x), forward(x))
