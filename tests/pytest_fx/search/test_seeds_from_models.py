"""check_pass(models=…): the places of models where a pass acts are cut out, and judged as random programs are."""

import operator
import os
import re

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.errors import FxError
from fx.operators.effects import effect_of
from fx.passes import close
from pytest_fx import LawViolation, NothingJudged, check_pass
from pytest_fx.search.model_cuts import FEW_ELEMENTS, places
from pytest_fx.search.references import references_of
from pytest_fx.search.search import Search
from pytest_fx.search.seed_models import load_models

pytestmark = pytest.mark.usefixtures("little_explored")

QUICK = hypothesis.settings(database=None, phases=[hypothesis.Phase.generate])
CHAIN = tuple(f"{part}{rest}" for part, rest in (("lo", "gcumsumexp"), ("ro", "ll"), ("fl", "ip"), ("ta", "nh")))
"""Methods in a row that no random program has: the pass neither mentions their names nor compares with them."""


class Scan(nn.Module):
    """Return a model with that row, and one where another operation reads its third value."""

    def __init__(self, width=16):
        super().__init__()
        self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, x):
        rolled = self.enter(x).logcumsumexp(1).roll(3, 1)
        return self.leave(rolled.flip(1).tanh())


def rows_of(graph_module):
    if any(str(node.target).endswith("_") for node in graph_module.graph.find_nodes(op="call_method")):
        return  # something may be written between two calls of a row
    for last in graph_module.graph.find_nodes(op="call_method", target=CHAIN[-1]):
        row = [last]
        while row[0].args and len(row) < len(CHAIN) and isinstance(row[0].args[0], fx.Node):
            row.insert(0, row[0].args[0])
        if (
            " ".join(str(node.target) for node in row) == " ".join(CHAIN)
            and not any(node.kwargs for node in row)
            and all(len(node.users) == 1 for node in row[:-1])
        ):
            yield row


def merged(right):
    """Return a pass that replaces the row by one indexing call; a wrong one forgets the shift of the roll."""

    def merge(graph_module):
        if any((effect := effect_of(node)) is not None and effect.kind == "write" for node in graph_module.graph.nodes):
            return
        for scan, roll, flip, last in rows_of(graph_module):
            shift = roll.args[1] if right else 0
            with graph_module.graph.inserting_before(last):
                value = graph_module.graph.call_function(torch.logcumsumexp, (scan.args[0], *scan.args[1:]))
                value = graph_module.graph.call_function(torch.roll, (value, shift, *roll.args[2:]))
                value = graph_module.graph.call_function(torch.flip, (value, flip.args[1:]))
                last.replace_all_uses_with(graph_module.graph.call_function(torch.tanh, (value,)))
            for node in (last, flip, roll, scan):
                graph_module.graph.erase_node(node)
        graph_module.recompile()

    merge.may_change = ("metadata",)
    return merge


def scan():
    torch.manual_seed(0)
    return Scan(), torch.randn(2, 16)


@pytest.fixture
def check(tmp_path):
    def check(pass_, **options):
        return check_pass(pass_, settings=QUICK, seed=1, folder=tmp_path, **{"max_examples": 10, **options})

    return check


def test_a_pass_on_operators_that_random_programs_never_have_in_a_row_is_judged_on_those_of_a_model(check):
    with pytest.raises(NothingJudged):
        check(merged(right=False))
    with pytest.raises(LawViolation, match=r"law 'contract'.*\n(.*\n)*found after 1 program"):
        check(merged(right=False), models=[scan])
    report = check(merged(right=True), models=[scan], min_changed=1)
    assert (report.places, report.models) == (1, ("1 in scan",))
    assert "1 were places of models where it acts: 1 in scan" in str(report)


@pytest.mark.parametrize("given", [scan, [scan()], (scan(),), scan(), [(Scan(16).eval(), (torch.ones(1, 16),))]])
def test_models_are_given_as_the_command_line_and_markers_take_them(check, given):
    with pytest.raises(LawViolation):
        check(merged(right=False), models=given)


def test_models_that_the_pass_leaves_alone_are_named_in_the_report(check):
    report = check(merged(right=True), models=["mlp", scan], min_changed=1)
    assert report.models == ("none in mlp", "1 in scan")
    assert "none in mlp, 1 in scan" in str(report)


def masked_attention(graph_module):
    """A wrong pass: written-out attention becomes one call without the mask."""
    modules = dict(graph_module.named_modules())
    for product in graph_module.graph.find_nodes(op="call_function", target=operator.matmul):
        row = [product]
        while isinstance(row[-1], fx.Node) and row[-1].args:
            row.append(row[-1].args[0])
        weights, scores = row[1:3], row[3:]
        if not weights or weights[0].op != "call_module" or type(modules[weights[0].target]).__name__[:4] != "Drop":
            continue
        filled, _, inner = scores[:3]
        if str(filled.target)[:6] != "masked" or inner.target is not operator.matmul:
            continue
        with graph_module.graph.inserting_before(product):
            query, key = inner.args[0], inner.args[1].args[0]
            attend = vars(F)["scaled_dot_" + "product_attention"]
            product.replace_all_uses_with(graph_module.graph.call_function(attend, (query, key, product.args[1])))
        graph_module.graph.erase_node(product)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def test_the_small_models_of_the_zoo_are_looked_through_where_random_programs_change_too_little(check):
    with pytest.raises(LawViolation) as raised:
        check(masked_attention, modes="eval", without="gradients")
    assert raised.value.law == "contract"
    assert "softmax" in str(raised.value) and "self.blocks_0_attention_dropout = nn.Dropout(p=0.1" in str(raised.value)


def cut(pass_, *models):
    """Return the texts of the places where a pass acts in some models."""
    search = Search(pass_, close, [], set(), 10.0, references_of(pass_))
    acts_on = lambda program: search.acts_on(program, "eval")  # noqa: E731
    with search.watchdog:
        programs_found = [
            program
            for model in load_models(models, ("eval",))
            for program in places(model, search.applied_to(model), acts_on)
        ]
    return [program.source for program in programs_found], programs_found


def relu_as_function(graph_module):
    for node in graph_module.graph.find_nodes(op="call_method", target="relu"):
        node.op, node.target = "call_function", torch.relu
    graph_module.recompile()


class Surroundings(nn.Module):
    """A value of a method, with all kinds of things before it and after it."""

    def __init__(self, width=8):
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.hooked = nn.Linear(width, width)
        self.hooked.register_forward_hook(lambda module, args, output: output.abs())
        self.tied = nn.Linear(width, width)
        self.tied.weight = self.hooked.weight
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).tril(1))
        self.register_buffer("places", torch.tensor([4, 0, 3, 3, 1]))

    def forward(self, x):
        x = self.frozen(x)
        scores = (x @ x.mT).masked_fill(~self.mask, float("-inf")).softmax(-1)
        scores = scores.sqrt() @ x
        value = self.hooked(scores).relu()
        return self.tied(value)[:, self.places], self.attention(value, value, value)[0], scores.relu()


def test_a_place_keeps_its_surroundings():
    (text, other), (program, _) = cut(relu_as_function, (Surroundings(), torch.randn(2, 5, 8)))
    module = program.build()
    assert "self.hooked.register_forward_hook(" in text
    assert module.tied.weight is module.hooked.weight
    assert module.attention.dropout == 0.1 and module.attention.batch_first
    assert re.search(r"self\.hooked\(.*\n.*\.relu\(\)\n.*self\.tied\(.*\n.*self\.attention\(", text)
    assert " @ " in other and "softmax" not in other


def invert_as_function(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.invert):
        node.target = torch.bitwise_not
    graph_module.recompile()


def linear_as_function(graph_module):
    for node in graph_module.graph.find_nodes(op="call_module", target="frozen"):
        with graph_module.graph.inserting_before(node):
            weight, bias = (graph_module.graph.get_attr(f"frozen.{name}") for name in ("weight", "bias"))
            call = graph_module.graph.call_function(F.linear, (node.args[0], weight, bias))
        node.replace_all_uses_with(call)
        graph_module.graph.erase_node(node)
    graph_module.recompile()


def test_masks_indices_and_frozen_parameters_are_kept():
    model = Surroundings(), torch.randn(2, 5, 8)
    (text,), _ = cut(invert_as_function, model)
    assert 'register_buffer("mask", torch.full((5, 5), True, dtype=torch.bool).tril(1))' in text
    _, (program,) = cut(linear_as_function, model)
    assert not any(parameter.requires_grad for parameter in program.build().frozen.parameters())


def test_sizes_of_a_place_become_small_and_stay_multiples_of_each_other():
    (text,), (program,) = cut(relu_as_function, (Wide(), torch.randn(4, 96, 768)))
    tensors = [*program.build().parameters(), *program.inputs.tensors]
    assert sum(tensor.numel() for tensor in tensors) <= FEW_ELEMENTS
    width, wider = program.build().widen.in_features, program.build().widen.out_features
    assert wider == 4 * width < 768
    assert f".reshape(4, {program.inputs.tensors[0].shape[1]}, 12, {wider // 12})" in text


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.widen = nn.Linear(768, 3072)

    def forward(self, x):
        return self.widen(x).relu().reshape(4, 96, 12, 256)


def test_a_place_reads_tensors_and_computes_numbers_and_tuples_itself():
    def forward(x, y):
        first, second = y.split(2, dim=1)
        return x.view(x.size(0), -1).relu() + first.sum() + second.relu().sum()

    class Model(nn.Module):
        def forward(self, x, y):
            return forward(x, y)

    texts, _ = cut(relu_as_function, (Model(), (torch.randn(2, 3, 4), torch.randn(2, 4))))
    sized, split = texts
    assert ".size(0)" in sized and ".split(2, dim = 1)" in split


def raises_on_many(graph_module):
    relu_as_function(graph_module)
    if len(graph_module.graph.nodes) > 100:
        raise ValueError("too many nodes")


class Deep(nn.Module):
    def forward(self, x):
        for _ in range(60):
            x = x.relu() + 1
        return x


@pytest.mark.parametrize("isolate", [False, True])
def test_a_pass_that_raises_on_a_whole_model_alone_breaks_a_law_that_names_the_model(check, isolate):
    with pytest.raises(LawViolation) as raised:
        check(raises_on_many, models=(Deep(), torch.ones(2)), isolate=isolate)
    assert raised.value.law == "refusal"
    assert "raises-on-many crashed with ValueError" in str(raised.value)
    assert "on all of Deep" in str(raised.value)


def ends_on_many(graph_module):
    if len(graph_module.graph.nodes) > 100:
        os._exit(3)


def test_a_pass_that_ends_the_process_on_a_whole_model_breaks_a_law(check):
    with pytest.raises(LawViolation) as raised:
        check(ends_on_many, models=(Deep(), torch.ones(2)), isolate=True)
    assert "law 'process untouched': ends-on-many ended its process with status 3" in str(raised.value)
    assert "on a program that has no text, such as a whole model of models=" in str(raised.value)


def test_models_are_looked_through_in_a_child_process_as_without(check):
    with pytest.raises(LawViolation, match="law 'contract'"):
        check(merged(right=False), models=[scan], isolate=True)
    assert check(merged(right=True), models=[scan], isolate=True, min_changed=1).models == ("1 in scan",)


class Branches(nn.Module):
    def forward(self, x):
        return x.relu() if x.sum().item() > 0 else x


@pytest.mark.parametrize(
    "models, message",
    [
        (5, "models= takes models, not an int"),
        (["mlpp"], "there is no model named 'mlpp'"),
        ([nn.Linear(2, 2)], "no place can be cut out of Linear: it has no example inputs"),
        ([(nn.Linear(2, 2), torch.ones(3))], "Linear cannot be called with its own example inputs"),
        ([(Branches(), torch.ones(3))], "Branches"),
        (["no_such_module_of_models:factory"], "no_such_module_of_models"),
    ],
)
def test_models_that_cannot_be_captured_are_refused_before_the_search(check, models, message):
    with pytest.raises(FxError, match=re.escape(message)) as raised:
        check(relu_as_function, models=models, on_program=lambda number, count: pytest.fail("it searched"))
    assert not isinstance(raised.value, LawViolation)
