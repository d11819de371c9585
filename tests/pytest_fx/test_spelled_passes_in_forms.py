"""A pass in a form of torch's is imported again by the name under which it was loaded."""

from __future__ import annotations

import torch
from torch._export.pass_base import _ExportPassBaseDeprecatedDoNotUse as ExportPass
from torch._inductor.pattern_matcher import PatternMatcherPass
from torch.export import export

from pytest_fx.loading import load_pass
from pytest_fx.search.counterexample import spelled_pass

patterns_of_this_module = PatternMatcherPass()


class CountedPass(ExportPass):
    def __init__(self):
        super().__init__()
        self.count = 0

    def call_operator(self, op, args, kwargs, meta):
        self.count += 1
        return super().call_operator(op, args, kwargs, meta)


def test_patterns_of_a_module_have_their_name_there():
    loaded = load_pass(f"{__name__}:patterns_of_this_module")
    assert spelled_pass(loaded)[0] == spelled_pass(loaded.at("decomposed"))[0] == f"{__name__}:patterns_of_this_module"


def test_a_pass_made_of_a_class_has_the_name_of_the_class_after_a_run_that_set_attributes():
    loaded = load_pass(CountedPass)
    export(torch.nn.ReLU(), (torch.ones(2),))._transform_do_not_use(loaded.pass_)
    assert loaded.pass_.count == 1
    assert spelled_pass(loaded)[0] == f"{__name__}:CountedPass"
