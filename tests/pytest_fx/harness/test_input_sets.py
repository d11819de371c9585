"""Several input sets of a model, and the domain that drawn inputs and variants keep to."""

import pytest
import torch
from torch import nn

from pytest_fx import InputSets, ascending, between, integers, right_padded, sums_to_one
from pytest_fx.errors import InputError
from pytest_fx.harness.domains import Domain, InputDomain
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import Subject
from pytest_fx.harness.variants import NON_CONTIGUOUS, NON_FINITE, OTHER_VALUES, of_batch, other_sizes
from pytest_fx.search.seed_models import load_models

DOMAINS = [
    between(-1, 2), integers(3, 9), sums_to_one(), sums_to_one(0), right_padded(), ascending(integers(0, 5)),
    ascending(between(0, 1)),
]  # fmt: skip


def loaded(inputs, module=None) -> Subject:
    (subject,) = load_models((module or nn.Softmax(-1), inputs), ["eval"])
    return subject


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_drawn_and_mended_tensors_are_in_their_domain(domain: Domain):
    generator = torch.Generator().manual_seed(0)
    for shape in [(3, 5), (1, 1), (4, 2)]:
        assert domain.contains(domain.drawn(shape, generator))
        wild = torch.randn(shape, generator=generator) * 20
        assert not domain.contains(wild) or shape == (1, 1)
        mended = domain.mended(wild)
        assert domain.contains(mended) and mended.shape == wild.shape and mended.dtype == wild.dtype
        assert torch.equal(domain.mended(mended), mended) or isinstance(domain, type(sums_to_one()))


@pytest.mark.parametrize("domain", [between(0, 1), integers(0, 3), sums_to_one()], ids=str)
def test_no_domain_contains_nan(domain):
    assert not domain.contains(torch.tensor([[torch.nan, 1.0]]))
    assert domain.contains(domain.mended(torch.tensor([[torch.nan, 1.0]])))


def test_every_input_that_is_drawn_or_varied_keeps_to_the_domain():
    domain = {0: sums_to_one()}
    subject = loaded(InputSets([((torch.full((4, 6), 1 / 6),), {})], domain=domain))
    names = [*range(6), *OTHER_VALUES, NON_FINITE, NON_CONTIGUOUS, of_batch(1), of_batch(7)]
    names += other_sizes(subject.arguments())
    there = [name for name in names if subject.has(name)]
    assert {of_batch(1), *other_sizes(subject.arguments())} <= set(there)
    for name in there:
        assert InputDomain.of(domain).violation(subject.arguments(name)) is None, name
    assert all(subject.is_outside(name) for name in names if name not in there)
    assert not subject.has(NON_FINITE) and not subject.has("inputs ten times as large")
    assert InputDomain.of(domain).violation(subject.data(torch.float32)[3]) is None
    without = loaded(InputSets([((torch.full((4, 6), 1 / 6),), {})]))
    assert all(map(without.has, names))


def test_all_input_sets_of_a_list_are_called_and_later_ones_are_derived_from_them():
    sets = InputSets([((torch.ones(2, 3),), {}), ((), {"input": torch.ones(4, 3)}), ((torch.ones(1, 3),), {})])
    subject = loaded(sets)
    assert subject.input_set_count == 3
    assert [tuple(subject.arguments(number).tensors[0].shape) for number in range(4)] == [
        (2, 3),
        (4, 3),
        (1, 3),
        (2, 3),
    ]
    assert not torch.equal(subject.arguments(3)[0], subject.arguments(0)[0])


def test_shapes_become_tensors_of_their_domain_by_position_or_name():
    sets = InputSets([((2, 3), (2,)), ((5, 3), (5,))], domain={0: integers(0, 4), 1: between(2, 3)})
    ids, values = sets.arguments(1)
    assert ids.shape == (5, 3) and ids.dtype == torch.int64 and values.min() >= 2
    assert sets.arguments(0, seed=1)[0].tolist() != sets.arguments(0, seed=2)[0].tolist()
    assert InputSets([{"x": (1, 2)}]).arguments(0)["x"].shape == (1, 2)
    assert InputSets([()]).arguments(0)[0].shape == ()


def test_a_function_is_called_with_a_seed_and_a_number_of_samples():
    sets = InputSets(lambda seed, samples: torch.full((samples, 2), float(seed)))
    subject = loaded(sets)
    assert subject.arguments(3)[0].tolist() == [[3.0, 3.0]]
    assert subject.arguments(of_batch(3))[0].shape == (3, 2)


def test_a_data_loader_gives_its_first_batches_without_their_labels():
    data = torch.utils.data.TensorDataset(torch.arange(40.0).reshape(20, 2), torch.arange(20))
    sets = InputSets(torch.utils.data.DataLoader(data, batch_size=2), take=lambda batch: batch[0])
    assert sets.count == 8 and sets.arguments(7)[0].tolist() == [[28.0, 29.0], [30.0, 31.0]]


def test_accepts_refuses_relations_of_several_inputs():
    sets = InputSets(
        [((torch.ones(4, 2), torch.ones(4, 1)), {})], accepts=lambda x, y: len(x) == len(y) and len(x) % 4 == 0
    )
    subject = Subject("own", nn.Identity(), sets.arguments, domain=sets.domain)
    assert not subject.has(of_batch(3)) and subject.has(of_batch(8)) and subject.is_outside(of_batch(3))


def test_a_domain_that_its_own_example_violates_is_told_before_anything_is_judged():
    sets = InputSets([((torch.full((1, 2), 0.5),), {}), ((torch.ones(1, 2),), {})], domain={0: sums_to_one()})
    with pytest.raises(InputError, match=r"outside of their own domain\n  why    input\[0\] is not in sums_to_one"):
        loaded(sets)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: InputSets([((torch.ones(1),), {})], domain={"mask": between(0, 1)}),
            r"input\['mask'\], which does not",
        ),
        (lambda: InputSets([((torch.ones(1),), {})], domain={0: (0, 1)}), "the domain of input 0 is no domain"),
        (
            lambda: InputSets([((torch.ones(1),), {})], domain=between(0, 1)),
            "'domain' of InputDomain.of is a Mapping, not an Interval",
        ),
        (lambda: InputSets([]), "got no input set"),
        (lambda: InputSets(torch.ones(3)), "InputSets takes several inputs"),
        (lambda: InputSets(3), "InputSets takes several inputs"),
        (lambda: InputSets([(1,)], accepts=3), "'accepts' of InputDomain.of is a function or None, not an int"),
        (lambda: InputSets([(1,)], domain={0: between(2, 1)}), r"between\(2, 1\) contains no numbers"),
        (lambda: InputSets([(1,)], domain={0: integers(1, 1)}), r"integers\(1, 1\) contains no numbers"),
    ],
)
def test_a_mistake_in_input_sets_is_told_in_a_sentence(make, message):
    with pytest.raises(InputError, match=message):
        loaded(make())


class Logarithm(nn.Module):
    def forward(self, x):
        return x.abs().log()


def without_abs(program):
    """Drop ``abs``, which is right for the positive numbers that the model is meant for."""
    for node in list(program.graph.nodes):
        if node.target == "abs":
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    program.recompile()
    return program


JUDGED = """
import torch
from pytest_fx import InputSets, between
from test_input_sets import Logarithm, without_abs

def bounded():
    return Logarithm(), InputSets([(3, 4)], domain={0: between(0.5, 1)})

def free():
    return Logarithm(), InputSets([((torch.full((3, 4), 0.5),), {})])

def test_it(fx_equal):
    fx_equal(without_abs)
"""


def test_a_pass_that_is_right_in_the_domain_alone_is_right_with_it_and_wrong_without(pytester, monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    path = pytester.makepyfile(mine=JUDGED).with_name("mine.py")
    result = pytester.runpytest("--fx-model", "mine:bounded", "--fx-model", "mine:free", path)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*law 'other values'*"])
    shapes = pytester.runpytest("--fx-model", "mine:bounded", "--fx-seed", "3", "--fx-batch", "2", path)
    shapes.stdout.fnmatch_lines(["*cannot have 2 sample(s)*"])


def test_arguments_that_are_not_tensors_stay_as_they_are():
    domain = InputDomain.of({"x": between(0, 1)})
    mended = domain.mended(Arguments(("text",), {"x": torch.tensor([3.0])}))
    assert mended is not None and mended.args == ("text",) and mended["x"].tolist() == [1.0]
