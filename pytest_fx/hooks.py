"""Hooks that a ``conftest.py`` or another plugin may implement; the plugin implements its own defaults by them."""

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
    """Register models and passes by their names, before any name is looked up.

    Called once, when a model or a pass is first requested::

        def pytest_fx_register(config):
            from mypackage import models, passes
            return [models.zoo_model, passes.FuseGelu]
    """


@pytest.hookspec(firstresult=True)
def pytest_fx_contract(
    config: pytest.Config, model: str, pass_: Pass, contract: Contract, options: Options
) -> Contract | str | None:
    """Return the contract of a pass on a model, or its text; the first result that is not None counts.

    ``contract`` is the pass's own, and ``options`` are the options of the test. By default ``--fx-contract``,
    ``--fx-rtol``, ``--fx-atol`` and ``--fx-error-factor`` decide::

        def pytest_fx_contract(config, model, pass_, contract):
            from fx.passes import approximate
            return approximate(sqnr_db=30) if model == "deep_recommender" else None
    """


@pytest.hookspec(firstresult=True)
def pytest_fx_tracer(config: pytest.Config, model: str) -> Callable[[], Any] | None:
    """Return a tracer class for a model, or a function that makes a tracer; the first result that is not None counts.

    The class is a subclass of ``fx.Tracer`` or ``torch.fx.Tracer``. By default ``--fx-tracer`` decides::

        def pytest_fx_tracer(config, model):
            from mypackage.tracing import BlockTracer
            return BlockTracer if model.startswith("timm") else None
    """


@pytest.hookspec(firstresult=True)
def pytest_fx_capture(config: pytest.Config, model: str) -> str | None:
    """Return the capture method of a model; the first result that is not None counts.

    The methods are those of ``--fx-capture``: ``"auto"``, ``"symbolic"``, ``"guided"`` and ``"export"``. By default
    that option decides::

        def pytest_fx_capture(config, model):
            return "export" if model.startswith("mypackage.models:swin") else None
    """


@pytest.hookspec(firstresult=True)
def pytest_fx_veto(config: pytest.Config, model: str, pass_name: str) -> str | None:
    """Return a reason to skip the tests of a pass on a model; None to run them.

    By default nothing is vetoed::

        def pytest_fx_veto(config, model, pass_name):
            if model.startswith("lstm") and pass_name == "my-fusion":
                return "recurrent networks are handled by another pass"
    """


@pytest.hookspec
def pytest_fx_summary_columns(config: pytest.Config) -> Sequence[SummaryColumn]:  # type: ignore[empty-body]
    """Return columns for the table at the end of the run; the columns of all implementations are shown.

    The plugin's own columns come first. The columns also appear in ``--fx-report`` (page and rows) and in the summary
    of ``--fx-annotate``. A comparison of two runs lists rows whose columns differ. Make a column that shows a measured
    time with ``is_compared=False``, which excludes it from comparisons::

        def pytest_fx_summary_columns(config):
            from pytest_fx.report.summary import SummaryColumn
            return [SummaryColumn("nodes saved", lambda row: str((row.nodes_before or 0) - (row.nodes_after or 0)))]
    """
