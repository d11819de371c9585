"""The messages of failed checks: those of eager, rendered when a check fails."""

from __future__ import annotations

import copy
import operator
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
from programs_with_checks import FORMATTED

import fx
from fx.assertions import check
from fx.interop import from_torch, to_torch
from fx.passes import RemoveChecks, RemoveDeadCode

GOOD = torch.ones(2, 3, 4, 5), torch.ones(5)
BAD = [
    (torch.ones(2, 2, 4, 5), torch.ones(5)),
    (torch.ones(3, 3, 7), torch.ones(5)),
    (torch.ones(2, 3, 4, 6), torch.ones(5)),
    (torch.ones(2, 3, 4, 5), -torch.arange(5.0)),
]


CALL = "call_function"


class Checked(torch.nn.Module):
    def __init__(self, function: Callable[..., None]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, y: Any) -> Any:
        self.function(x, y)
        return x + 1


def said(run: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> str | None:
    """Return the message of the error that ``run`` raises, without the notes on its place."""
    try:
        run(*inputs)
    except Exception as error:
        return str(error)
    return None


@pytest.fixture(params=FORMATTED, ids=lambda function: function.__name__)
def module(request: pytest.FixtureRequest) -> Checked:
    return Checked(request.param)


def test_a_failing_program_has_the_message_of_eager(module: Checked, tmp_path: Path) -> None:
    program = fx.symbolic_trace(module)
    path = tmp_path / "program.safetensors"
    fx.save(program, path)
    forms = {
        "code": program,
        "interpreter": fx.Interpreter(program).run,
        "captured again": fx.symbolic_trace(program),
        "transformed": fx.Transformer(program).transform(),
        "copy": copy.deepcopy(program),
        "pickle": pickle.loads(pickle.dumps(program)),
        "file": fx.load(path),
        "torch.fx": to_torch(program),
        "captured again by torch.fx": torch.fx.symbolic_trace(to_torch(program)),
        "back from torch.fx": from_torch(to_torch(program)),
        "without dead code": RemoveDeadCode()(copy.deepcopy(program)),
    }
    for name, run in forms.items():
        assert said(run, GOOD) is None, name
        assert [said(run, bad) for bad in BAD] == [said(module, bad) for bad in BAD], name
    assert any(said(module, bad) for bad in BAD)


def test_the_code_is_captured_to_the_same_program(module: Checked) -> None:
    program = fx.symbolic_trace(module)
    assert fx.symbolic_trace(program).code == program.code
    assert fx.symbolic_trace(from_torch(to_torch(program))).code == program.code


def test_nothing_is_computed_for_the_message_alone(module: Checked) -> None:
    program = fx.symbolic_trace(module)
    calls = [node.target for node in program.graph.nodes if node.op == "call_method"]
    assert calls.count("max") == 0
    assert calls.count("min") <= 1
    RemoveChecks()(program)
    expected = [node.target for node in program.graph.nodes if node.op == "call_function"][-1:]
    assert expected == [operator.add]
    assert torch.equal(program(*BAD[0]), BAD[0][0] + 1)


def test_names_are_those_of_a_message_without_values() -> None:
    def plain(x: Any) -> Any:
        if x.dim() != 2:
            raise ValueError("another rank")
        return x.dim() + x.shape[0] + x.shape[1]

    def telling(x: Any) -> Any:
        if x.dim() != 2:
            raise ValueError(f"got {x.dim()}, {x.shape[3]}")
        return x.dim() + x.shape[0] + x.shape[1]

    names = [[node.name for node in fx.symbolic_trace(f).graph.nodes] for f in (plain, telling)]
    assert [name.replace("_assert", "check") for name in names[0]] == names[1]


def test_a_message_that_cannot_be_made_ahead_is_its_source() -> None:
    def reported(x: Any) -> str:
        return ", ".join(str(size) for size in x)

    def program(x: Any) -> Any:
        if x.dim() != 2:
            raise ValueError(f"got {reported(x.shape)}")
        if x.shape[0] > 9:
            raise ValueError(f"object {object()}")
        if x.shape[0] > 8:
            raise ValueError(f"largest {x.max(0)}")
        if x.shape[0] > 7:
            size = f"{x.shape[0]}"
            raise ValueError(f"size {size:>9}")
        return x

    messages = [node.args[1] for node in fx.symbolic_trace(program).graph.find_nodes(target=torch._assert, op=CALL)]
    assert messages == ["got {reported(x.shape)}", "object {object()}", "largest {x.max(0)}", "size {size}"]


def test_a_list_in_a_message_has_all_its_elements() -> None:
    def program(x: Any) -> Any:
        if x.dim() != 2:
            raise ValueError([1, 2, 3])
        if x.shape[0] > 9:
            raise ValueError(f"one of {[4, 5, 6]}")
        return x

    messages = [node.args[1] for node in fx.symbolic_trace(program).graph.find_nodes(target=torch._assert, op=CALL)]
    assert messages == ["[1, 2, 3]", "one of {[4, 5, 6]}"]


def alarm(sent: list[str], name: str) -> str:
    sent.append(name)
    return name


class SentError(ValueError):
    def __init__(self, sent: list[str]) -> None:
        super().__init__(alarm(sent, "made"))


class Alarming:
    def __init__(self, sent: list[str]) -> None:
        self.sent = sent

    @property
    def name(self) -> str:
        return alarm(self.sent, "read")

    def __repr__(self) -> str:
        return alarm(self.sent, "written")

    def __getitem__(self, key: str) -> str:
        return alarm(self.sent, "element")

    def __eq__(self, other: object) -> bool:
        return bool(alarm(self.sent, "compared"))

    __hash__ = object.__hash__


def test_side_effects_of_a_message_do_not_happen_during_the_capture() -> None:
    sent: list[str] = []
    alarming = Alarming(sent)

    def program(x: Any) -> Any:
        if x.dim() != 2:
            raise ValueError(alarm(sent, "message"))
        if x.dim() != 2:
            raise ValueError(f"stops {sys.exit(1)}")
        if x.dim() != 2:
            alarm(sent, "statement")
            raise ValueError(f"got {alarming.name}")
        if x.dim() != 2:
            raise ValueError(f"got {alarming}")
        if x.dim() != 2:
            raise ValueError("got %s" % alarming["key"])  # noqa: UP031
        if x.dim() != 2:
            raise SentError(sent)
        if x.dim() == 3 and alarm(sent, "condition"):
            raise ValueError("second condition")
        return x

    with pytest.raises(fx.TraceError, match='alarm\\(sent, "condition"\\)'):
        fx.symbolic_trace(program)
    assert not sent


def test_a_message_that_runs_code_stays_as_its_source() -> None:
    alarming = Alarming([])

    def program(x: Any) -> Any:
        if x.dim() != 2:
            raise ValueError(f"got {alarming.name}")
        if x.dim() != 2:
            raise SizesError(x.dim(), wanted=2)
        return x

    class SizesError(ValueError):
        def __init__(self, found: object, *, wanted: object) -> None:
            super().__init__(f"{found} is not {wanted}")

    checks = fx.symbolic_trace(program).graph.find_nodes(op=CALL, target=torch._assert)
    assert [node.args[1] for node in checks] == ["got {alarming.name}", "x.dim()"]


def test_literal_text_in_the_form_of_a_traced_value_stays() -> None:
    def program(x: Any) -> Any:
        torch._assert(x.dim() == 2, "Proxy(x)")
        if x.dim() != 2:
            raise ValueError("Proxy(x.shape) {0}")
        return {"Proxy(x)": x}

    captured = fx.symbolic_trace(program)
    checks = captured.graph.find_nodes(op=CALL, target=torch._assert)
    assert [node.args[1] for node in checks] == ["Proxy(x)", "Proxy(x.shape) {0}"]
    assert list(captured(torch.ones(1, 1))) == ["Proxy(x)"]


def test_a_message_of_real_values_is_rendered() -> None:
    def program(x: Any, wanted: int = 3) -> Any:
        sizes = [2, 4]
        if x.dim() == 7:
            raise ValueError(f"one of {sizes}, {len(sizes)} in all, %s" % sizes[0])
        return x

    (check,) = fx.symbolic_trace(program).graph.find_nodes(op=CALL, target=torch._assert)
    assert check.args[1] == "one of [2, 4], 2 in all, 2"


def test_a_message_that_is_no_text_is_written_as_one() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.sum() > 0, 2)  # pyright: ignore[reportArgumentType]
        return x

    program = fx.symbolic_trace(checked)
    assert "'2'" in program.code
    with pytest.raises(AssertionError, match="2"):
        program(-torch.ones(2))


def test_printing_a_traced_attribute_records_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Any) -> Any:
        print(f"{x.shape} {x.shape}")
        return x

    assert [node.name for node in fx.symbolic_trace(program).graph.nodes] == ["x", "output"]
    assert capsys.readouterr().out == "Proxy(x.shape) Proxy(x.shape)\n"


def test_dead_code_of_torch_fx_leaves_checks_in_place() -> None:
    program = to_torch(fx.symbolic_trace(Checked(FORMATTED[0])))
    program.graph.eliminate_dead_code()
    program.recompile()
    assert said(program, BAD[0]) == "expected 3 channels, got 2 of torch.Size([2, 2, 4, 5])"


@pytest.mark.parametrize(
    "template", ["{0.__class__}", "{0.grad_fn}", "{0.backward()}", "{0.zero_()}", "{0|eval}", "{x}", "{0[x]}"]
)
def test_a_template_reads_listed_attributes_only(template: str) -> None:
    with pytest.raises(ValueError, match="a message cannot read"):
        check(False, template, torch.ones(1))
    check(True, template, torch.ones(1))


def test_a_check_of_truth_is_saved_dropped_and_captured_by_torch_fx(tmp_path: Path) -> None:
    def truth(x: Any) -> Any:
        if x.sum():
            raise ValueError(f"sum {x.sum()}")
        return x

    program = fx.symbolic_trace(truth)
    fx.save(program, tmp_path / "program")
    for run in (program, fx.load(tmp_path / "program"), torch.fx.symbolic_trace(to_torch(program))):
        assert said(run, (torch.zeros(2),)) is None
        assert said(run, (torch.ones(2),)) == "sum 2.0"
    RemoveChecks()(program)
    assert [node.op for node in program.graph.nodes] == ["placeholder", "output"]
