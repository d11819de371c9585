"""Bad calls made from signatures: each ends in an error that names the expected kind."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import good_values
import pytest
import torch
from bad_values import World
from calls_by_signature import Target, arguments, attempts, end_of, methods, public_callables

import fx
import fx.interop
import fx.lowering
import fx.quantize
import fx.serialization
from fx.operators import effects
from fx.passes.shape_prop import extract_tensor_metadata
from fx.serialization import allow_list

ROOMS = (
    "fx.quantize.",
    "fx.lowering.",
    "fx.interop.is_for_torch",
    "fx.canonical.",
    "fx.load",
    "fx.save",
    "fx.serialization.",
)
"""The callables that are attacked here."""
NOT_CALLED = {
    "fx.lowering.Network": "a protocol, of which Python makes no objects",
    "fx.quantize.advise": "its function measures a program; what it raises is its own",
    "fx.quantize.FrozenBatchNorm.forward": "it is torch's own batch norm that runs, and refuses",
}
"""The callables that are left out, and the reasons."""
VALUES = (
    "none", "minus", "huge", "float", "empty", "word", "list", "cycle", "dict", "deep", "set", "unprintable",
    "function", "class", "tensor", "node", "erased", "foreign", "proxy",
)  # fmt: skip
"""Bad values of each kind; ``FX_BAD_CALLS=all`` tries all that there are."""


_TORCHS = frozenset({"tensor", "minus", "zero", "list", "tuple"})
"""Kinds of values that operators take: torch itself reports those that its kernels refuse."""


def _is_operation(target: Target, world: World) -> bool:
    function = target.bind(world)
    return inspect.isfunction(function) and function in effects.rules and target.name.startswith("fx.quantize.")


def targets() -> Iterator[Target]:
    """Yield the public callables with arguments in these packages."""
    for name, value in sorted(public_callables("fx").items()):
        if not name.startswith(ROOMS) or name in NOT_CALLED:
            continue
        yield Target(name, lambda world, value=value: value, inspect.signature(value))
        if not isinstance(value, type) or name not in good_values.INSTANCES:
            continue
        for method, member in methods(value):
            full = f"{name}.{method}"
            bound = isinstance(member, (classmethod, staticmethod))
            signature = inspect.signature(getattr(value, method))
            parameters = list(signature.parameters.values())[0 if bound else 1 :]
            if parameters and full not in NOT_CALLED:
                yield Target(
                    full,
                    lambda world, name=name, method=method: getattr(good_values.INSTANCES[name](world), method),
                    signature.replace(parameters=parameters),
                )


def good_arguments(target: Target, world: World) -> dict[str, Any] | None:
    """A good value for each argument that has to be given; None where one is not known."""
    own = good_values.BY_CALLABLE.get(target.name, {})
    good: dict[str, Any] = {}
    for name, parameter in target.signature.parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            make = own.get(name, good_values.BY_NAME.get(name))
            if make is None:
                return None
            good[name] = make(world)
    return good


def attack() -> tuple[int, dict[str, str]]:
    """Return the number of bad calls, and those with an uninformative error."""
    world, count, by_name = World(), 0, dict[str, str]()
    before = world.snapshot()
    values = sorted(world.values) if os.environ.get("FX_BAD_CALLS") == "all" else list(VALUES)
    for target in targets():
        for attempt in attempts(target, values):
            good = good_arguments(target, world)
            if good is None or (attempt.value in _TORCHS and _is_operation(target, world)):
                continue
            args, kwargs = arguments(attempt, world, good)
            function = target.bind(world)
            count += 1
            if (end := end_of(lambda: function(*args, **kwargs))) is not None:  # noqa: B023
                by_name[str(attempt)] = end
            if world.snapshot() != before:
                world = World()
                before = world.snapshot()
            else:
                world.values = world._values()
    return count, by_name


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_no_bad_call_made_from_a_signature_ends_in_an_error_that_tells_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(allow_list, "_allowed", allow_list._allowed.copy())  # some calls allow files to name more
    monkeypatch.setattr(allow_list, "_own_names", allow_list._own_names.copy())
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        count, failures = attack()
    assert count >= 3000
    assert not failures, "\n".join(f"{call}: {end}" for call, end in failures.items())


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: fx.quantize.Affine("x", 3), "a scale is positive"),
        (
            lambda: fx.quantize.Affine.of_range(0.0, 1.0, bits=10**5000),
            "'bits' of Affine.of_range is an int from 2 to 8, not an int of more than 64 bits",
        ),
        (lambda: fx.quantize.Affine.of_range(None, 1.0), "'low' of Affine.of_range is a number, not None"),
        (lambda: fx.quantize.MinMaxObserver(bits="8"), "'bits' of MinMaxObserver is an int from 2 to 8, not '8'"),
        (lambda: fx.quantize.MinMaxObserver()(3), "an observer takes a tensor, not an int"),
        (lambda: fx.quantize.MinMaxObserver().merge(None), "'other' of MinMaxObserver.merge is an Observer, not None"),
        (
            lambda: fx.quantize.MovingAverageObserver(momentum=2),
            "'momentum' of MovingAverageObserver is a number above 0 and at most 1, not 2",
        ),
        (
            lambda: fx.quantize.PercentileObserver(percentile="x"),
            "'percentile' of PercentileObserver is a number above 50 and at most 100, not 'x'",
        ),
        (lambda: fx.quantize.FakeQuantize.of(None), "FakeQuantize.of takes an observer"),
        (lambda: fx.quantize.FrozenBatchNorm(-1), "'num_features' of FrozenBatchNorm is an int of at least 0, not -1"),
        (
            lambda: fx.quantize.FrozenBatchNorm.of(None),
            "'norm' of FrozenBatchNorm.of is a _BatchNorm or a FrozenBatchNorm, not None",
        ),
        (
            lambda: fx.quantize.QuantizedLinear("a", 2),
            "an element of 'shape' of QuantizedLinear is an int of at least 0, not 'a'",
        ),
        (lambda: fx.quantize.QuantizedLinear(2, 2)(3), "a layer in 8 bits takes a tensor, not an int"),
        (lambda: fx.quantize.kernels_used(None), "'program' of kernels_used is a Module, not None"),
        (lambda: fx.quantize.merge_observers(None, None), "'prepared' of merge_observers is a Module, not None"),
        (lambda: fx.quantize.quantize(None, 0.1, 3), "'input' of quantize is a Tensor, not None"),
        (lambda: fx.quantize.quantize(torch.ones(1), "x", 3), "'scale' of quantize is a number, not a str"),
        (
            lambda: fx.quantize.QuantizationScheme.from_data(3),
            "'data' of QuantizationScheme.from_data is a Mapping, not an int",
        ),
        (
            lambda: fx.quantize.QuantizationScheme().choice(3),
            "'node' of QuantizationScheme.choice is a Node, not an int",
        ),
        (
            lambda: fx.quantize.prepare(World().program, None, 3),
            "'example_inputs' of prepare is a Sequence or None, not an int",
        ),
        (
            lambda: fx.lower(World().program, example_inputs=3),
            "'example_inputs' of lower is a Sequence or None, not an int",
        ),
        (lambda: fx.lowering.Lower().with_data(3), "'data' of Lower.with_data is a Sequence, not an int"),
        (
            lambda: fx.lowering.Converters("toy").register(3),
            "'converter' of Converters.register is a Converter, not an int",
        ),
        (lambda: fx.lowering.EngineCache(3), "'folder' of EngineCache is a str or a PathLike, not an int"),
        (lambda: fx.lowering.OneDNN().build(3), "'region' of FusedRegion is a GraphModule, not an int"),
        (lambda: fx.lowering.OpenVINO([]), "'precision' of OpenVINO is 'float32' or 'bfloat16', not []"),
        (
            lambda: fx.lowering.TensorRTModule.load(3),
            "'path' of TensorRTEngine.load is a str or a PathLike, not an int",
        ),
        (lambda: fx.canonical.canonical_form(World().program, 3), "'leaves' of canonical_form is a tuple, not an int"),
        (lambda: fx.serialization.allow(torch.neg, 3), "a name in files is text, not an int"),
        (lambda: fx.passes.MergeParallelLayers("x"), "'least' of MergeParallelLayers is an int, not a str"),
        (lambda: extract_tensor_metadata(3), "extract_tensor_metadata takes a tensor, not an int"),
        (
            lambda: fx.Interpreter(World().program).call_function(3, (), {}),
            "call_function takes a function, not an int",
        ),
        (lambda: fx.Interpreter(World().program).call_method("neg", (), {}), "the value whose method is called"),
        (lambda: fx.Interpreter(World().program).get_attr(3, (), {}), "fetch_attr takes the path of an attribute"),
        (lambda: World().relu.add_origins(3), "add_origins takes names of nodes, not an int"),
        (lambda: fx.proxy.Attribute(3, "x"), "an Attribute is one of a Proxy, not an int"),
    ],
)
def test_an_error_for_a_bad_argument_names_the_expected_kind(call: Any, says: str) -> None:
    with pytest.raises(fx.FxError) as raised:
        call()
    assert says in str(raised.value).splitlines()[0]  # the next line quotes the call


def test_a_traced_value_is_no_pass_of_another_library() -> None:
    assert not fx.interop.is_for_torch(fx.Proxy(World().input))
