"""Places that are cut out of a model keep to the declared domain of its inputs, however the search varies them."""

import ast
import contextlib
import operator

import pytest
import torch
from torch import nn

from fx.passes import close
from pytest_fx import InputSets, LawViolation, ascending, between, integers, sums_to_one
from pytest_fx.generation.record import load
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.laws import choose_laws
from pytest_fx.search.model_cuts import places
from pytest_fx.search.observed import Observed
from pytest_fx.search.references import references_of
from pytest_fx.search.search import Search
from pytest_fx.search.seed_models import load_models
from pytest_fx.search.syntax import edited
from pytest_fx.search.tensor_variations import tensor_variations

pytestmark = pytest.mark.usefixtures("little_explored")


class Mixture(nn.Module):
    """A model that multiplies two roots of its input."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(4, 4)

    def forward(self, given, x):
        weights = given["weights"]
        return weights.sqrt() * weights.sqrt() + self.enter(x).tanh()


def mixture(domain):
    torch.manual_seed(0)
    inputs = ({"weights": torch.rand(2, 4).softmax(-1)}, torch.randn(2, 4))
    return Mixture().eval(), InputSets([(inputs, {})], domain=domain)


def drop_roots(program):
    """A pass for positive numbers."""
    for product in program.graph.find_nodes(op="call_function", target=operator.mul):
        first, second = product.args
        if getattr(first, "target", None) == getattr(second, "target", None) == "sqrt" and first.args == second.args:
            with program.graph.inserting_before(product):  # times 1.0: roots of integers are floating-point numbers
                value = program.graph.call_function(operator.mul, (first.args[0], 1.0))
            product.replace_all_uses_with(value)
            program.graph.erase_node(product)
    program.graph.eliminate_dead_code()
    program.recompile()


drop_roots.may_change = ("metadata",)
WEIGHTS = {"[0]['weights']": between(0, 1)}


def searched(domain):
    """Return the search that has tried a pass on the place of the mixture."""
    search = Search(drop_roots, close, choose_laws((), (), ("metadata",)), set(), 10.0, references_of(drop_roots))
    search.try_places(load_models(mixture(domain), ["eval"]), ["eval"])
    return search


def test_a_pass_that_is_right_in_the_domain_alone_keeps_all_laws_on_places():
    counts = searched(WEIGHTS).counts
    assert (counts.models, counts.changed) == (("1 in Mixture",), 1)


def test_the_same_pass_is_wrong_on_a_place_without_the_domain():
    with pytest.raises(LawViolation, match=r"law 'other values'[\s\S]*inputs of opposite signs"):
        searched({})


def place_of(domain, pass_=drop_roots):
    (model,) = load_models(mixture(domain), ["eval"])
    (program,) = places(model, PassRun(model, pass_), lambda program: True)
    return program


def test_a_place_declares_the_domain_of_the_inputs_of_the_model_in_its_text():
    program = place_of(WEIGHTS)
    assert "in_domain(between(0.0, 1.0), torch." in program.source
    assert {place: str(domain) for place, domain in program.domain.tensors.items()} == {"[0]": "between(0, 1)"}
    assert place_of({}).domain is None
    assert place_of({1: between(-9, 9)}).domain is None  # an input that the place does not read


def test_each_variation_of_the_text_keeps_to_the_domain():
    program = place_of({"[0]['weights']": sums_to_one()})
    observed = Observed.of(program.source, "eval")
    sums = []
    for variation in tensor_variations(observed):
        text = ast.unparse(edited(observed.tree, variation.edits))
        with contextlib.suppress(Exception):  # a variation need not run
            other = load(text, frozenset(), (), 0)
            assert other.domain is not None
            sums.append(other.domain.violation(other.inputs) is None)
    assert all(sums) and len(sums) > 30


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(200, 100)

    def forward(self, indices):
        return self.table(indices).neg().neg()


def drop_negations(program):
    for node in program.graph.find_nodes(op="call_method", target="neg"):
        if node.args[0].target == "neg":
            node.replace_all_uses_with(node.args[0].args[0])
    program.graph.eliminate_dead_code()
    program.recompile()


def test_a_domain_of_indices_shrinks_with_the_table_that_they_are_for():
    (model,) = load_models(
        (Bags(), InputSets([((torch.arange(200),), {})], domain={0: ascending(integers(0, 200))})), ["eval"]
    )
    programs = list(places(model, PassRun(model, drop_negations), lambda program: True, [[2]]))
    (program,) = programs
    size = program.module.table.num_embeddings
    assert size < 200 and f"in_domain(ascending(integers(0, {size})), " in program.source
