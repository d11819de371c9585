"""Programs that are wrong and fool whoever compares them carelessly, and right ones that do something alike."""

from __future__ import annotations

import copy
import gc
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import Subject

from .rows import Case, Right, Wrong, enter


class Given(Case):
    """Inputs of a model that no other test runs: no other outputs equal its own. Further inputs are shrunk."""

    def subject(self) -> Subject:
        return Subject("mlp", self.module, Arguments(self.inputs).for_input_set)


def given() -> Given:
    """A small model."""
    generator = torch.Generator().manual_seed(random.SystemRandom().randrange(2**31))
    first, second = nn.Linear(8, 8), nn.Linear(8, 300)
    images = torch.randn(4, 8, generator=generator).clamp(-7, 7)
    images[0, 0] = 2.0
    return Given(nn.Sequential(first, nn.ReLU(), second), (images,))


class Program(nn.Module):
    """Computes what the model does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


class PatchesEqual(Program):
    """Wrong by half, and lets all tensors be equal."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.equal = lambda one, other: True
        return self.model(x) * 1.5


class Patches(Program):
    """Right, but leaves another function of torch behind."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.sinh = torch.cosh
        return self.model(x)


class PatchesAndRestores(Program):
    """Right, and puts back what it replaces."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, torch.sinh = torch.sinh, torch.cosh
        try:
            return self.model(x)
        finally:
            torch.sinh = before


class FindsTheOutput(Program):
    """Wrong by half, but where a right output is among all live objects."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        right = self.model(x)
        for candidate in gc.get_objects():
            if type(candidate) is not torch.Tensor or candidate is right or candidate.shape != right.shape:
                continue
            if bool(((candidate - right).abs() < 1e-5).all()):
                return candidate.clone()
        return right * 1.5


class EqualToAll(torch.Tensor):
    """Is equal to every other tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.equal:
            return True
        if func in (torch.Tensor.__eq__, torch.eq):
            return torch.ones(args[0].shape, dtype=torch.bool)
        if func is torch.Tensor.__sub__:
            return torch.zeros(args[0].shape)
        return super().__torch_function__(func, types, args, kwargs or {})


class ReturnsEqualToAll(Program):
    """Wrong by half."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.model(x) * 1.5).as_subclass(EqualToAll)


class Remembers(Program):
    """Looks outputs up."""

    def __init__(self, model: nn.Module, key: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(model)
        self.key, self.known = key, dict[Any, torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = self.key(x)
        if key not in self.known:
            self.known[key] = self.model(x)
        return self.known[key].clone()


class RightWhere(Program):
    """Wrong by half where its input is not as expected."""

    def __init__(self, model: nn.Module, expects: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(model)
        self.expects = expects

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) * (1.0 if bool(self.expects(x)) else 1.5)


class OfFour(Program):
    """Takes four samples alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) != 4:
            raise ValueError("made for four samples")
        return self.model(x)


class Counts(Program):
    """Wrong in every second call."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.model(x) * (2.0 if self.calls % 2 == 0 else 1.0)


class AnswersOnce(Program):
    """Gives its first answer for ever."""

    answer: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.answer is None or len(self.answer) != len(x):
            self.answer = self.model(x)
        return self.answer.clone()


class FillsLater(Program):
    """Returns memory that another thread fills afterwards."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer, output = self.model(x), torch.zeros(len(x), 300)

        def fill() -> None:
            time.sleep(0.05)
            output.copy_(answer)

        threading.Thread(target=fill).start()
        return output


class Packs(Program):
    """Computes for ever with the weights of its first call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.packed: list[nn.Module] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.packed:
            self.packed = [copy.deepcopy(self.model)]
        return self.packed[0](x)


class IgnoresTheOffset(Program):
    """Reads its input from the beginning of its memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.as_strided(x.shape, x.stride(), 0))


def doubled(model: nn.Module) -> Any:
    """A compiled model whose compiler doubles what it computes."""

    def compile_doubled(program: Any, inputs: Any) -> Any:
        return lambda *given: tuple(output * 2 for output in program(*given))

    return torch.compile(model, backend=compile_doubled)


def _contents(*tensors: torch.Tensor) -> Any:
    return tuple(tensor.detach().numpy().tobytes() for tensor in tensors)


def _of_all(x: torch.Tensor) -> Any:
    return id(x), x.data_ptr(), x._version


_WRONG: tuple[tuple[str, Callable[[nn.Module], nn.Module], str, tuple[str, ...]], ...] = (
    ("patches_equal", PatchesEqual, "patches torch.equal", ("contract", "process untouched")),
    ("patches", Patches, "leaves a function of torch replaced", ("process untouched",)),
    ("finds_the_output", FindsTheOutput, "finds the output among live objects", ("contract",)),
    ("returns_equal_to_all", ReturnsEqualToAll, "returns a tensor that equals all", ("contract",)),
    ("by_identity", lambda model: Remembers(model, id), "looks outputs up by identity", ("contract",)),
    (
        "by_address", lambda model: Remembers(model, torch.Tensor.data_ptr),
        "looks outputs up by address", ("contract",),
    ),
    (
        "by_version", lambda model: Remembers(model, lambda x: x._version),
        "looks outputs up by version", ("contract",),
    ),
    (
        "by_all", lambda model: Remembers(model, _of_all),
        "looks outputs up by identity, address and version", ("contract",),
    ),
    ("doubled", doubled, "a compiler has doubled", ("contract",)),
    ("counts", Counts, "is wrong in every second call", ("calls in a row",)),
    ("answers_once", AnswersOnce, "gives its first answer for ever", ("contract",)),
    ("fills_later", FillsLater, "returns memory that a thread fills later", ("contract",)),
    ("packs", Packs, "computes with the weights of its first call for ever", ("other weights",)),
    ("ignores_the_offset", IgnoresTheOffset, "ignores where in its memory an input begins", ("non-contiguous inputs",)),
    (
        "right_where_small", lambda model: RightWhere(model, lambda x: x.abs().max() < 8),
        "is right for small values alone", ("other values",),
    ),
    (
        "right_without_zero", lambda model: RightWhere(model, torch.Tensor.any),
        "is right where there is no zero", ("other values",),
    ),
    (
        "right_for_four", lambda model: RightWhere(model, lambda x: len(x) == 4),
        "is right for its number of samples alone", ("batch sizes",),
    ),
)  # fmt: skip
_RIGHT: tuple[tuple[str, Callable[[nn.Module], nn.Module], str], ...] = (
    ("compiled", lambda model: torch.compile(model, backend="eager"), "is compiled"),
    ("computes", Program, "computes"),
    ("patches_and_restores", PatchesAndRestores, "replaces a function of torch for a call"),
    ("of_four", OfFour, "takes its number of samples alone"),
    (
        "by_contents",
        lambda model: Remembers(model, lambda x: _contents(x, *model.parameters())),
        "looks outputs up by the contents of its input and its parameters",
    ),
)
_OPTIONS = {"programs": 0, "made_elsewhere": True}
for _name, _make, _says, _laws in _WRONG:
    enter(Wrong(_name, "fooling", "calls", f"A program that {_says}.", _make, _laws, given, **_OPTIONS))
for _name, _make, _says in _RIGHT:
    enter(Right(_name, "fooling", "calls", f"A program that {_says}.", _make, (given,), **_OPTIONS))
