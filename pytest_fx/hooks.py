"""Hooks that a ``conftest.py`` or another plugin may implement; the plugin's own behaviour implements them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fx.passes import Contract, Pass
    from model_zoo import ZooModel
    from pytest_fx.options import Options
    from pytest_fx.report.summary import SummaryColumn


@pytest.hookspec
def pytest_fx_register(config: pytest.Config) -> Iterable[ZooModel | Pass] | None:  # type: ignore[empty-body]
    """Make models and passes known by their names, before any name is looked up.

    Called once, when a model or a pass is first asked for::

        def pytest_fx_register(config):
            from mypackage import models, passes
            return [models.zoo_model, passes.FuseGelu]
    """


@pytest.hookspec(firstresult=True)
def pytest_fx_contract(
    config: pytest.Config, model: str, pass_: Pass, contract: Contract, options: Options
) -> Contract | str | None:
    """Say what a pass is held to on a model; the first answer that is not None counts.

    It is a contract or its text. ``contract`` is the pass's own, ``options`` are those of the test. By default
    ``--fx-contract``, ``--fx-rtol``, ``--fx-atol`` and ``--fx-error-factor`` decide::

        def pytest_fx_contract(config, model, pass_, contract):
            from fx.passes import approximate
            return approximate(sqnr_db=30) if model == "deep_recommender" else None
    """


@pytest.hookspec(firstresult=True)
def pytest_fx_tracer(config: pytest.Config, model: str) -> Callable[[], Any] | None:
    """Give what makes the tracer for a model; the first answer that is not None counts.

    A subclass of ``fx.Tracer`` or of ``torch.fx.Tracer`` is one. By default ``--fx-tracer`` decides::

        def pytest_fx_tracer(config, model):
            from mypackage.tracing import BlockTracer
            return BlockTracer if model.startswith("timm") else None
    """


@pytest.hookspec(firstresult=True)
def pytest_fx_capture(config: pytest.Config, model: str) -> str | None:
    """Say in which way a model is captured; the first answer that is not None counts.

    It is what ``--fx-capture`` takes: ``"auto"``, ``"symbolic"``, ``"guided"`` or ``"export"``. By default that option
    decides::

        def pytest_fx_capture(config, model):
            return "export" if model.startswith("mypackage.models:swin") else None
    """


@pytest.hookspec(firstresult=True)
def pytest_fx_veto(config: pytest.Config, model: str, pass_name: str) -> str | None:
    """Give a reason not to try a pass on a model, whose tests are then skipped with it; None to try it.

    By default nothing is vetoed::

        def pytest_fx_veto(config, model, pass_name):
            if model.startswith("lstm") and pass_name == "my-fusion":
                return "recurrent networks are handled by another pass"
    """


@pytest.hookspec
def pytest_fx_summary_columns(config: pytest.Config) -> Sequence[SummaryColumn]:  # type: ignore[empty-body]
    """Give columns of the table at the end of the run; those of all implementations stand side by side.

    The plugin's own come first. The page and the lines of ``--fx-report``, and the summary of ``--fx-annotate``, have
    them too, and a comparison of two runs says where one shows something else, unless it is made with
    ``is_compared=False``, as one that shows a measured time should be::

        def pytest_fx_summary_columns(config):
            from pytest_fx.report.summary import SummaryColumn
            return [SummaryColumn("nodes saved", lambda row: str((row.nodes_before or 0) - (row.nodes_after or 0)))]
    """
