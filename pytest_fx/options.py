"""What the user asks for: by command line, ini file or marker. Imports no torch: pytest reads this at every start."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pytest_fx.option_table import FLAGS, OF_RUNS, SWITCHES, TABLE, PluginOption, setting_of

WARMUP_ROUNDS = 3
"""Pairs of calls made before any is measured."""
WIDEST_INTERVAL = 0.1
"""Width of the interval of a ratio, relative to the ratio, from which on times are too noisy to tell it."""
TOO_NOISY = "too noisy to tell"
"""What is said of them."""
TIMING_BUDGET = 20.0
"""Seconds for which pairs are added if nothing is said: nobody would wait for more of each program."""
LONGEST_ISOLATED = 600.0
"""Seconds that a test may run in a child process if nothing is said: nobody would wait for one that hangs."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is verified, and how."""

    models: tuple[Any, ...]
    """Models to verify: names of the zoo, ``all``, ``tag:…``, ``package.module:factory``, or factories themselves."""
    passes: tuple[Any, ...]
    """Passes to apply: registered names, ``package.module:callable``, or passes. Empty: all registered that apply."""
    device: str
    """Where programs run: ``"cpu"`` or ``"cuda"``."""
    dtype: str | None
    """The working dtype by name; None for the model's own."""
    batch: tuple[int, ...]
    """Sizes of the batches that models are called with, one after the other. Empty: one sample for models of the zoo,
    the example inputs as they are for others."""
    threads: tuple[int, ...]
    """Numbers of threads that times are taken with. Answers are compared with the first."""
    contract: Any | None
    """What stands in for each pass's own contract, as text or a contract; None for the pass's own."""
    rtol: float | None
    """Relative tolerance of ``close``; None for the contract's own."""
    atol: float | None
    """Absolute tolerance of ``close``; None for the contract's own."""
    rounds: int
    """Pairs of eager and transformed calls that a timing takes at first."""
    budget: float
    """Seconds for which pairs are added to a timing that does not decide."""
    timing: bool
    """Whether times are taken at all."""
    size: str
    """``"full"``, or ``"small"`` for the small sibling of each zoo model."""
    seed: int
    """Where the example inputs of zoo models are drawn from."""
    leaves: tuple[Any, ...] = ()
    """Modules that are leaves when a model is captured: paths, patterns of paths, names of classes, or classes."""
    tracer: Any | None = None
    """What captures models, as ``package.module:Class`` or itself; None for the usual."""
    capture: str = "auto"
    """The way in which models are captured: ``"symbolic"``, ``"guided"``, ``"export"``, or the first that takes it."""
    mode: str | None = None
    """The mode in which models are judged: ``"train"``, ``"eval"`` or ``"both"``; None for evaluation mode, and for
    passes also that in which a factory gives its model."""
    form: str = "auto"
    """The form of exported programs: ``"functional"``, ``"aten"``, or that in which a pass knows operations."""
    checks: tuple[Any, ...] = ()
    """Passes to try on random programs, named as in ``passes``."""
    examples: int | None = None
    """Random programs for each of them; None for what Hypothesis's settings say."""
    mutate: int | None = None
    """Mutants of each of them that are tried; None for none."""
    baseline: str | None = None
    """The file of an earlier run, as it was given, whose speed-ups are compared with; None for none."""
    fail_slower: float | None = None
    """The share by which a program may take longer than in that run; None to fail no timing."""
    draw: str | None = None
    """The folder that drawings are written into, as it was given; None for none."""
    report: str | None = None
    """The folder that the report is written into, as it was given; None for none."""
    annotate: bool = False
    """Whether failures are reported to a pull request on GitHub."""
    error_factor: float | None = None
    """How many times eager's own error ``close`` allows in the working dtype; None for the contract's own."""
    detect: float | None = None
    """The relative change of all outputs that a comparison has to catch; None for any."""
    isolate: bool = False
    """Whether tests run in a child process."""
    timeout: float | None = None
    """Seconds that a test of a pass or a model may run; None for any, or under ``isolate`` for
    :data:`LONGEST_ISOLATED`."""
    memory_limit: int | None = None
    """MiB that a test may need under ``isolate``; None for most of what the machine has left."""
    min_changes: int = 0
    """Changes that a named pass makes in a model at least."""
    strict: bool = False
    """Whether what cannot be told fails as well: a timing that is too noisy, a pass that changes less than before."""
    estimate: bool = False
    """Whether estimated times stand beside the measured ones."""
    explicit: frozenset[str] = frozenset()
    """Flags of the options on the command line and in markers. The ini file and ``addopts`` have defaults."""
    inference: bool = False
    """Whether passes are for inference: no gradients are asked for, and random programs are in evaluation mode."""

    @property
    def used(self) -> bool:
        """Return whether anything was asked for, so that loading torch is worth its seconds."""
        return bool(self.models or self.passes or self.checks)

    @property
    def reports(self) -> bool:
        """Return whether more is kept of failures than the terminal shows."""
        return self.report is not None or self.annotate

    @property
    def longest(self) -> float | None:
        """Seconds that a test of a pass or a model may run; None for any."""
        return LONGEST_ISOLATED if self.timeout is None and self.isolate else self.timeout


OPTIONS = pytest.StashKey[Options]()
"""Where a :class:`pytest.Config` keeps the options."""
ADDED = pytest.StashKey[list[str]]()
"""Where it keeps the names of the built-in suites that settings in the ini file add to the user's tests."""


def add_options(parser: pytest.Parser) -> None:
    """Declare the options to pytest: on the command line, and with ``fx_`` and underscores in the ini file."""
    group = parser.getgroup("fx", "verify and time transforms of PyTorch programs")
    for option in TABLE:
        if option.repeatable:
            group.addoption(f"--fx-{option.flag}", action="append", metavar=option.metavar, help=option.help)
        else:
            group.addoption(f"--fx-{option.flag}", type=option.parse, metavar=option.metavar, help=option.help)
        kind = "linelist" if option.repeatable else "string"
        parser.addini(option.setting, f"Default of --fx-{option.flag}.", type=kind, default=None)
    for flag, help_text in SWITCHES.items():
        group.addoption(f"--fx-{flag}", action="store_true", help=help_text)
        parser.addini(setting_of(flag), f"Default of --fx-{flag}.", type="bool", default=False)
    group.addoption(
        "--fx-tables", nargs="?", const="all", metavar="NAME[,NAME…]",
        help="Measure the paper's evaluation, all of it or these tables, and write it into results/. What was measured "
        "already on this machine with this code is kept. Example: --fx-tables=ir-complexity,fusion",
    )  # fmt: skip
    parser.addini("fx_tables", "Default of --fx-tables.", default=None)


def read_options(config: pytest.Config) -> Options:
    """Return what was given on the command line of ``config``, or else in its ini file, each name once.

    Raises :class:`pytest.UsageError` for an ini setting that there is not, or that makes no sense.
    """
    _require_settings(config)
    values = {option.name: _read(config, option) for option in TABLE}
    flags = {name: is_set(config, name) for name in ("annotate", "strict", "isolate", "estimate", "inference")}
    if flags["inference"]:
        values["mode"] = values["mode"] or "eval"
    if values["budget"] is None:
        values["budget"] = 0.0 if _is_given(config, "fx_rounds") else TIMING_BUDGET
    values["min_changes"] = values["min_changes"] or int(is_set(config, "require-change"))
    written = {str(argument).partition("=")[0] for argument in config.invocation_params.args}
    explicit = frozenset(flag for flag in FLAGS.values() if f"--fx-{flag}" in written)
    return Options(timing=not is_set(config, "no-timing"), explicit=explicit, **flags, **values)


def _require_settings(config: Any) -> None:
    """Raise :class:`pytest.UsageError` for a setting that there is not, of which pytest only warns."""
    for setting in config._get_unknown_ini_keys():
        if setting.startswith("fx_"):
            known = [*(option.setting for option in TABLE), *map(setting_of, (*SWITCHES, "tables"))]
            raise pytest.UsageError(
                f"{ini_file(config)} has {setting}, which is not a setting; there are {', '.join(known)}"
            )


def ini_file(config: pytest.Config) -> str:
    """Return the name of the file that settings are in."""
    return "-o" if config.inipath is None else config.inipath.name


def origin_of(config: pytest.Config, setting: str) -> str | None:
    """Return where the value of a setting was written if that is not the command line."""
    return None if config.getoption(setting) is not None else f"{setting} in {ini_file(config)}"


def is_set(config: pytest.Config, flag: str) -> bool:
    """Return whether one of :data:`~pytest_fx.option_table.SWITCHES` is given, or set in the ini file."""
    setting = setting_of(flag)
    try:
        return bool(config.getoption(setting) or config.getini(setting))
    except (ValueError, pytest.UsageError) as error:  # the second since pytest 9
        raise pytest.UsageError(f"{setting} in {ini_file(config)} must be true or false: {error}") from None


def _is_given(config: pytest.Config, setting: str) -> bool:
    return config.getoption(setting) is not None or bool(config.getini(setting))


def _read(config: pytest.Config, option: PluginOption) -> Any:
    given = config.getoption(option.setting)
    if given is None:
        given = config.getini(option.setting)
        if not given:
            return option.default
        if not option.repeatable:
            try:
                return option.parse(given)
            except argparse.ArgumentTypeError as error:
                raise pytest.UsageError(f"{option.setting} in {ini_file(config)} {error}") from None
    return tuple(dict.fromkeys(given)) if option.repeatable else given


_KEYWORDS = {option.keyword: option for option in TABLE if option.flag not in OF_RUNS}
_SWITCHES = {
    "require_change": "min_changes", "no_timing": "timing", "strict": "strict", "estimate": "estimate",
    "inference": "inference",
}  # fmt: skip
"""Keywords that are true or false, and the fields of :class:`Options` that they are about."""


def options_of(node: pytest.Item | Any) -> Options:
    """Return the options that hold for one test: those of the run, changed by ``@pytest.mark.fx(…)`` on it.

    A marker nearer to the test wins. Raises :class:`pytest.UsageError` for a positional argument, for a keyword that is
    not an option, and for a value that the command line would refuse.
    """
    options = node.config.stash[OPTIONS]
    for marker in reversed(list(node.iter_markers("fx"))):
        if marker.args:
            positional = ", ".join(map(repr, marker.args))
            raise pytest.UsageError(
                f"{node.nodeid}: the marker fx takes no positional arguments, and has {positional}\n"
                "  try    name the option: model=…, pass_=…"
            )
        for name in marker.kwargs:
            if name not in _KEYWORDS and name not in _SWITCHES:
                known = ", ".join([*_KEYWORDS, *_SWITCHES])
                raise pytest.UsageError(f"{node.nodeid}: the marker fx has no keyword {name!r}; it has {known}")
        try:
            explicit = options.explicit.union(FLAGS[name] for name in marker.kwargs)
            values = dict(_as_given(name, value) for name, value in marker.kwargs.items())
            if "rounds" in marker.kwargs:  # exactly so many
                values.setdefault("budget", 0.0)
            if values.get("budget", 0.0) is None:
                values["budget"] = TIMING_BUDGET
            options = replace(options, **values, explicit=explicit)
        except argparse.ArgumentTypeError as error:
            raise pytest.UsageError(f"{node.nodeid}: {error}") from None
    return options


def _as_given(name: str, value: Any) -> tuple[str, Any]:
    """The field that a marker's keyword is about, and its value, read as the command line reads it."""
    try:
        if name in _KEYWORDS:
            return _KEYWORDS[name].name, _KEYWORDS[name].read(value)
        if not isinstance(value, bool):
            raise argparse.ArgumentTypeError(f"must be True or False, not {value!r}")
        if name == "require_change":
            return _SWITCHES[name], int(value)
        return _SWITCHES[name], value if name != "no_timing" else not value
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{name} in a marker fx {error}") from None
