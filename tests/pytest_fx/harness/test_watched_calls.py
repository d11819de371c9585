"""Calls of a program that is judged: the process is watched, and neither its tensors nor eager's outputs fool."""

import pytest
import torch
from catalogue import fooling
from torch import nn
from torch._dynamo import mutation_guard

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Run, Runner, hidden
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws, law_called


def test_process_changes_by_a_call_are_restored_and_reported():
    sinh = torch.sinh
    judged = fooling.given().subject()
    pass_run = PassRun.given(judged, fooling.Patches(judged.fresh()), label="mine")
    pass_run.actual()
    assert torch.sinh is sinh
    (violation,) = broken_laws([law_called("process untouched")], pass_run)
    assert "mine changed the process, when it is called: torch.sinh is another function" in str(violation)


def test_outputs_are_hidden_in_the_block_and_the_same_bits_after_it():
    output, shared = torch.tensor([[1.0, torch.nan], [-0.0, 3.0]]), nn.Parameter(torch.ones(2))
    run = Run({"a": output, "view": output[0], "half": torch.ones(3).bfloat16(), "shared": shared.detach()})
    before = output.view(torch.int32).clone()
    with hidden([run, run]):
        assert not bool((output.view(torch.int32) == before).any())
        assert not bool((run.output["half"] == 1).any())
        assert shared.tolist() == [1, 1]  # which another object holds, too
    assert torch.equal(output.view(torch.int32), before)
    assert run.output["half"].tolist() == [1, 1, 1]


def test_outputs_are_there_again_after_an_error():
    output = torch.ones(2)
    with pytest.raises(KeyError), hidden([Run(output)]):
        raise KeyError
    assert output.tolist() == [1, 1]


def test_an_output_of_a_class_that_runs_operators_itself_is_of_another_structure():
    class Own(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return True

    class Returning(fooling.Program):
        def forward(self, x):
            return torch.Tensor._make_subclass(Own, self.model(x))

    judged = fooling.given().subject()
    pass_run = PassRun.given(judged, Returning(judged.fresh()))
    (violation,) = broken_laws([law_called("structure")], pass_run)
    assert "an output is a tensor of another class" in str(violation)


def test_contents_are_replaced_at_addresses_that_stay_and_state_is_restored_after_the_last_call():
    calls = []

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            calls.append((x.data_ptr(), x._version, x.tolist()))
            return x + self.count + torch.rand(1) * 0

    program = Counting()
    ones, zeros = Arguments((torch.ones(2),)), Arguments((torch.zeros(2),))
    runs = Runner(program).in_a_row([zeros, ones], torch.float32)
    assert [run.output.tolist() for run in runs] == [[1, 1], [3, 3]]
    assert [run.state["count"].item() for run in runs] == [1, 2]
    assert program.count.item() == 0
    (first, second) = calls
    assert first[:2] == second[:2] and first[2] == [0, 0] and second[2] == [1, 1]


def test_a_program_that_changes_the_shape_of_its_input_gets_a_new_one():
    class Turning(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.t_() + 1

    first, other = Arguments((torch.ones(2, 3),)), Arguments((torch.zeros(2, 3),))
    assert Runner(Turning()).in_a_row([other, first], torch.float32)[1].output.shape == (3, 2)


def test_a_model_that_returns_its_parameter_is_judged():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor):
            return self.weight, x * self.weight

    judged = Subject("own", Own(), lambda number: Arguments((torch.full((3,), 1.0 + number),)))
    pass_run = PassRun(judged, lambda program: None)
    assert not broken_laws([law_called("contract")], pass_run)
    assert pass_run.actual().output[0].tolist() == [1, 1, 1]


def test_values_outside_of_a_domain_break_no_law():
    class Logarithm(nn.Module):
        def forward(self, x: torch.Tensor):
            return torch.log(x), torch.sqrt(x) / x, torch.exp(x * 30).softmax(-1)

    class Otherwise(nn.Module):
        def forward(self, x: torch.Tensor):
            return x.log(), x.pow(0.5) / x, (x * 30).exp().softmax(-1)

    images = torch.rand(4, 8, generator=torch.Generator().manual_seed(0)) + 1
    judged = Subject("logarithm", Logarithm(), lambda number: Arguments((images * (1 - number / 100),)))
    pass_run = PassRun.given(judged, Otherwise())
    assert not broken_laws(affordable(choose_laws(), pass_run), pass_run)


def test_a_program_whose_output_no_longer_shares_memory_breaks_the_law_on_aliasing():
    class View(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1)

    class Copied(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten().clone()

    judged = Subject("view", View(), lambda number: Arguments((torch.ones(2, 3) * (number + 1),)))
    pass_run = PassRun.given(judged, Copied())
    (violation,) = broken_laws(affordable(choose_laws(), pass_run), pass_run)
    assert violation.law == "aliasing"


def test_wrappers_of_the_first_torch_compile_are_no_change_of_the_process(monkeypatch):
    class Compiling(fooling.Program):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mutation_guard.install_generation_tagging_init()
            return self.model(x)

    monkeypatch.setattr(nn.Module, "__init__", nn.Module.__init__)  # restored after the test
    monkeypatch.setattr(nn.Module, "__setstate__", nn.Module.__setstate__)
    monkeypatch.delattr(nn.Module, "___needs_generation_tag_patch", raising=False)
    before = nn.Module.__init__
    judged = fooling.given().subject()
    pass_run = PassRun.given(judged, Compiling(judged.fresh()))
    pass_run.actual()
    assert nn.Module.__init__ is not before
    assert not broken_laws([law_called("process untouched")], pass_run)


def test_a_compiled_program_is_compiled_for_all_inputs_that_it_is_tried_with():
    compilations = []

    def count(program, inputs):
        compilations.append([list(each.shape) for each in inputs if isinstance(each, torch.Tensor)])
        return program

    torch._dynamo.reset()  # of compilations by other tests, which count, too
    with torch._dynamo.config.patch(recompile_limit=2):  # past this limit a function runs in eager
        judged = fooling.given().subject()
        program = torch.compile(judged.fresh(), backend=count, dynamic=False)
        pass_run = PassRun.given(judged, program)
        assert not broken_laws(affordable(choose_laws(), pass_run), pass_run)
    assert len(compilations) > 2
