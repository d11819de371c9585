"""The blame for a broken law: a pass of torch.fx is not blamed for effects of torch's clean-up alone."""

import pytest
import torch
from torch import nn

from fx.interop import adapt
from pytest_fx.errors import LawViolation
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import Law
from pytest_fx.search.blame import Blame


class _HasDeadCode(nn.Module):
    def forward(self, x):
        torch.exp(x)
        return x + 1


def _removes_dead_code(program):
    program.graph.eliminate_dead_code()
    program.recompile()
    return program


def _dead_code_stays(measured):
    """A law that removing dead code breaks, each time but the first with the next of ``measured`` in its message."""
    values = iter([measured[0], *measured])

    def check(pass_run):
        if "exp" not in pass_run.program.code:
            raise LawViolation("dead code stays", f"exp is gone, {next(values)} off")

    return Law("dead code stays", check)


@pytest.mark.parametrize(
    "measured, due",
    [
        (["0.98765432"] * 3, False),
        (["0.98765432", "0.98765439", "0.98765417"], False),
        (["1.2345e-07", "1.2346e-07", "1.2347e-07"], False),
        (["0.98765432", "0.98765432", "0.75"], True),
        (["3 elements"] * 2 + ["4 elements"], True),
    ],
)
def test_a_pass_is_to_blame_unless_the_clean_up_alone_breaks_the_law_alike_up_to_rounding(measured, due):
    subject = Subject("dead code", _HasDeadCode(), lambda input_set: Arguments((torch.ones(3),)))
    pass_ = adapt(_removes_dead_code)
    pass_run = PassRun(subject, pass_)
    assert Blame(pass_).caused_by_pass(_dead_code_stays(measured), pass_run) is due
