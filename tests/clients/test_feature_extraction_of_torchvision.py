"""torchvision's ``feature_extraction`` with ``fx`` in place of torch.fx.

``make models`` installs torchvision beside the environment; ``PYTHONPATH=.venv-models make test ARGS=tests/clients`` is
then these tests with it.
"""

import copy
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import fx

from .sides import OURS, SIDES, THEIRS, Side

FEATURES = {"layer1": "low", "layer3.1.conv2": "middle", "avgpool": "high"}
X = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning")]


@pytest.fixture(scope="module")
def models() -> ModuleType:
    """torchvision's models, also where its operators were built for another torch."""
    pytest.importorskip("models.libraries", exc_type=ImportError).declare_operators()
    return pytest.importorskip("torchvision", reason="torchvision is not installed").models


@pytest.fixture(scope="module", autouse=True)
def where_models_are_declared() -> Iterator[None]:
    sys.path.append(str(Path(__file__).parents[1] / "properties"))
    importlib.invalidate_caches()
    yield
    sys.path.pop()


def extraction(side: Side) -> ModuleType:
    return side.client("torchvision.models.feature_extraction")


def extractor(side: Side, model: Any) -> Any:
    return extraction(side).create_feature_extractor(model, FEATURES)


def test_nodes_have_the_same_names(models: ModuleType) -> None:
    model = models.resnet18()
    theirs, ours = (extraction(side).get_graph_node_names(model) for side in SIDES)
    assert ours == theirs


@pytest.mark.parametrize("training", [False, True])
def test_features_are_the_same(models: ModuleType, training: bool) -> None:
    model = models.resnet18()
    theirs, ours = (extractor(side, copy.deepcopy(model).train(training))(X) for side in SIDES)
    assert list(ours) == list(theirs) == list(FEATURES.values())
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_mode_switches_between_two_programs(models: ModuleType) -> None:
    extracted = extractor(OURS, models.resnet18())
    assert isinstance(extracted, fx.GraphModule) and extracted.graph is extracted.train_graph
    assert extracted.eval().graph is extracted.eval_graph
    copied = copy.deepcopy(extracted).eval()
    assert copied.graph is copied.eval_graph and copied.graph is not extracted.graph
    assert all(torch.equal(copied(X)[name], value) for name, value in extracted(X).items())


@pytest.mark.thorough
def test_checks_of_a_vision_transformer_have_names_of_their_own(models: ModuleType) -> None:
    model = models.vit_b_16().eval()
    (_, theirs), (_, ours) = (extraction(side).get_graph_node_names(model) for side in (THEIRS, OURS))
    spelled = [name.replace("_assert", "check") for name in theirs if not name.endswith("getattr")]
    assert [name for name in ours if not name.endswith("getattr")] == spelled
