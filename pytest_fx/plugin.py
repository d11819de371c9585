"""The hooks that make pytest verify PyTorch programs. They start without torch and load the rest when needed.

The steps of one test, in order:

1. ``pytest_generate_tests`` makes a test for each model, pass and other value of the options of its fixtures.
   ``pytest_collection_modifyitems`` skips combinations that a pass or a hook vetoes, and puts timings into one group.
2. ``pytest_runtest_protocol`` wraps the following steps. Under pytest-xdist, a timing waits here for its turn. The
   process is restored after an interrupted test in this outermost wrapper, where no signal can arrive any more.
   With ``--fx-isolate`` the plugin :mod:`~pytest_fx.isolation.isolated_tests` runs the next steps in a child process.
3. ``pytest_runtest_setup`` skips the test if its model could not be made before: that is one failure, not fifty.
4. ``pytest_fixture_setup`` wraps each fixture: ``fx_model`` loads the model, ``fx_traced`` captures it,
   ``fx_transformed`` applies the pass. The plugin's fixtures leave the process unchanged.
5. ``pytest_runtest_call`` wraps the test itself, which compares by ``fx_equal`` and times by ``fx_timing``. Its changes
   of the process are undone before its fixtures are torn down.
6. ``pytest_runtest_makereport`` makes a report of each phase, with the user's frames alone. The report carries the rows
   of the tables, since another process may print them.
7. ``pytest_runtest_logreport`` stores a worker's measurements in that process; ``pytest_terminal_summary`` prints them.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_fx import fixtures, hooks
from pytest_fx.collection import (
    add_suites,
    choose_suites,
    parametrize_from_options,
    skip_vetoed,
    suite_module,
    tests_by_name,
)
from pytest_fx.fixtures import FIXTURES, skip_if_told
from pytest_fx.idle_options import require_effects
from pytest_fx.isolation.isolated_tests import IsolatedRun, require_isolation
from pytest_fx.isolation.kept_process import interrupted_finished, isolated_set_up, isolated_test
from pytest_fx.isolation.watched_tests import WatchedRun, explain_crash, tell_of_the_last_run
from pytest_fx.lazy import load
from pytest_fx.lines import fit_report
from pytest_fx.options import OPTIONS, Options, add_options, read_options
from pytest_fx.parallel import distribution
from pytest_fx.processes.signal_stack import signal_stack_kept
from pytest_fx.records.baseline import BASELINE, chosen_baseline
from pytest_fx.records.benchmark_records import presented_as_benchmarks, table_left_out
from pytest_fx.report.columns import own_columns
from pytest_fx.report.other_reports import add_to_html, flatten_properties
from pytest_fx.report.progress import open_progress, progress_of
from pytest_fx.report.rows import records_on
from pytest_fx.report.run_report import report_run
from pytest_fx.report.summary import (
    INTERRUPTED,
    require_comparisons,
    write_checks,
    write_interruption,
    write_nothing_compared,
    write_summary,
)
from pytest_fx.timing import clock  # noqa: F401  # pyright: ignore[reportUnusedImport] - before programs are imported
from pytest_fx.tracebacks import show_the_users


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks of the plugin."""
    pluginmanager.add_hookspecs(hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the command line."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Search ``conftest.py`` in the same folders, whether the built-in suite or its single tests are run."""
    arguments: argparse.Namespace = early_config.known_args_namespace
    arguments.file_or_dir = [name for name in arguments.file_or_dir if tests_by_name([name]) == [name]]


def pytest_configure(config: pytest.Config) -> None:
    """Check the names on the command line, and run the built-in suite if models but no files are given."""
    config.addinivalue_line(
        "markers",
        "fx(model=[…], pass_=[…], batch=[…], …): options of pytest-fx for one test, by the names of their flags.",
    )
    config.addinivalue_line("markers", "fx_gpu: a row of --fx-tables that needs a GPU.")
    config.stash[OPTIONS] = read_options(config)
    config.stash[BASELINE] = chosen_baseline(config)
    distribution.take_turns(config)
    require_isolation(config)
    how = IsolatedRun if config.stash[OPTIONS].isolate else WatchedRun
    config.pluginmanager.register(how(config, FIXTURES))
    config.pluginmanager.register(fixtures, "fx-fixtures")
    report_run(config)
    choose_suites(config)
    if (tests := tests_by_name(config.args)) != config.args:
        config.args, config.option.pyargs = tests, True


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Open the progress line before workers of pytest-xdist are started."""
    open_progress(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Name the test in which the process of an earlier run has ended."""
    tell_of_the_last_run(session.config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Describe the verified models and passes, and the threads of timings."""
    options = config.stash[OPTIONS]
    if not options.models:
        return None
    passes = ", ".join(options.passes) or "all that apply"
    threads = " and ".join(map(str, options.threads))
    parts = [f"models: {', '.join(options.models)}", f"passes: {passes}", f"{threads} thread(s)"]
    if options.against is not None:
        parts.append(f"against {options.against}")
    return "fx: " + "; ".join([*parts, *filter(None, [distribution.describe(config)])])


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect the built-in suite, whatever file names the user's configuration collects."""
    return suite_module(module_path, parent)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Collect the built-in suites that the ini file selects."""
    report = yield
    add_suites(collector, report)
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses ``fx_model`` or ``fx_pass`` once for each named model or pass."""
    parametrize_from_options(metafunc)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, Any, Any]:
    """Refuse options that act on no test, and skip vetoed combinations.

    Present timings as benchmarks to ``--benchmark-only`` and ``--benchmark-skip``.
    """
    require_effects(session, items)
    skip_vetoed(items)
    with distribution.timings_grouped(config, items), presented_as_benchmarks(items):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session: pytest.Session) -> Generator[None, Any, Any]:
    """Report to a controller of pytest-xdist which tests are timings."""
    with distribution.collection_reported(session):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Keep timings in workers apart from other work, and undo changes of the process by an interrupted test."""
    progress_of(item.config).test = item.nodeid
    with distribution.turn_of(item), interrupted_finished(), signal_stack_kept():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Undo changes of the process by a fixture of the plugin."""
    with isolated_set_up(fixturedef, request.node, FIXTURES):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Undo changes of the process by a test that uses a fixture of the plugin, however the test ends."""
    with isolated_test(item, FIXTURES):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test if its model could not be made, and an earlier test has failed for it."""
    skip_if_told(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Show only the user's frames, unless ``--full-trace`` is given."""
    if call.excinfo is not None and not item.config.option.fulltrace:
        show_the_users(call.excinfo)
    report = yield
    if report.failed:
        fit_report(report, None if call.excinfo is None else call.excinfo.value)
    add_to_html(item.config, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: Any) -> None:
    """Store a worker's measurements, and give other reports plain values."""
    flatten_properties(report)
    worker = getattr(report, "node", None)
    if worker is not None and records_on(report):
        load("pytest_fx.report.recording").receive(worker.config, report, worker.gateway.id)
    if worker is not None and worker.config.option.fx_tables is not None:
        load("pytest_fx.tables.tables_run").receive(worker.config, report)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send a worker of pytest-xdist the information that only the controller has."""
    distribution.instruct(node.config, node.workerinput)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: Any) -> None:
    """Explain in the report how a worker of pytest-xdist ended during a test."""
    explain_crash(crashitem, report, sched.config.rootpath)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule all timings on one worker; pytest-xdist would distribute them one by one."""
    if not distribution.timings_last(config):
        return None
    return load("pytest_fx.parallel.scheduling").TimingsLast(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add the conditions of a PyTorch timing to pytest-benchmark's record, which already has the commit."""
    if config.stash[OPTIONS].used:
        machine = load("pytest_fx.records.records").describe_machine()
        machine_info["fx"] = {name: value for name, value in machine.items() if name != "commit"}


@pytest.hookimpl(trylast=True)
def pytest_fx_contract(contract: Any, options: Options) -> Any:
    """Return the contract of the command line, or else the pass's own."""
    return load("pytest_fx.loading").chosen_contract(options, contract)


@pytest.hookimpl(tryfirst=True)
def pytest_fx_summary_columns(config: pytest.Config) -> Sequence[Any]:
    """Return the plugin's own columns."""
    return own_columns(config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, Any, Any]:
    """Print the table of the results of passes, below the summaries of other plugins."""
    with table_left_out(config):
        result = yield
    write_summary(terminalreporter, config.stash[OPTIONS])
    write_checks(terminalreporter)
    write_nothing_compared(terminalreporter)
    options = config.stash[OPTIONS]
    if options.draw is not None and options.used:
        terminalreporter.write_line(f"fx: drawings are in {options.draw}")
    if config.option.fx_tables is not None:
        terminalreporter.write_sep("=", "fx: tables")
        for line in load("pytest_fx.tables.tables_run").summary(config):
            terminalreporter.write_line(line)
    write_interruption(terminalreporter)
    return result


def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    """Write the evaluation's documents, even if the run was interrupted."""
    config = session.config
    require_comparisons(session)
    if exitstatus == pytest.ExitCode.INTERRUPTED and (
        config.stash[OPTIONS].used or config.option.fx_tables is not None
    ):
        config.stash[INTERRUPTED] = session.testscollected
    if session.config.option.fx_tables is not None:
        load("pytest_fx.tables.tables_run").finish(session.config)
