"""Options from the command line, the ini file and markers. Imports no torch: pytest reads this at every start."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_fx.option_table import FLAGS, OF_RUNS, SWITCHES, TABLE, PluginOption, setting_of

WARMUP_ROUNDS = 3
"""Number of pairs of calls before the first measured one."""
WIDEST_INTERVAL = 0.1
"""Width of a ratio's interval, relative to the ratio, from which on times are too noisy to tell the ratio."""
TOO_NOISY = "too noisy to tell"
"""Verdict on such times."""
TIMING_BUDGET = 20.0
"""Seconds for which pairs are added by default: few would wait longer for each program."""
LONGEST_ISOLATED = 600.0
"""Seconds that a test may run in a child process by default, since a test that hangs must end."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run or a test: the models and passes to verify, and the methods."""

    models: tuple[Any, ...]
    """Models to verify: names of the zoo, ``all``, ``tag:…``, ``package.module:factory``, or factories themselves."""
    passes: tuple[Any, ...]
    """Passes to apply: registered names, ``package.module:callable``, or passes. Empty: all registered that apply."""
    device: str
    """Device that programs run on: ``"cpu"`` or ``"cuda"``."""
    dtype: str | None
    """The working dtype by name; None for the model's own."""
    batch: tuple[int, ...]
    """Sizes of the batches that models are called with, one after the other. Empty: one sample for models of the zoo,
    the example inputs as they are for others."""
    threads: tuple[int, ...]
    """Numbers of threads in timings. Outputs are compared with the first number."""
    contract: Any | None
    """Contract that replaces each pass's own, as text or a contract; None for the pass's own."""
    rtol: float | None
    """Relative tolerance of ``close``; None for the contract's own."""
    atol: float | None
    """Absolute tolerance of ``close``; None for the contract's own."""
    rounds: int
    """Pairs of eager and transformed calls that a timing takes at first."""
    budget: float
    """Seconds for which pairs are added to an undecided timing."""
    timing: bool
    """False if no times are taken."""
    size: str
    """``"full"``, or ``"small"`` for the small sibling of each zoo model."""
    seed: int
    """Seed of the example inputs of zoo models."""
    leaves: tuple[Any, ...] = ()
    """Modules that are leaves when a model is captured: paths, patterns of paths, names of classes, or classes."""
    tracer: Any | None = None
    """Tracer that captures models, as ``package.module:Class`` or a class; None for the default."""
    capture: str = "auto"
    """Capture method: ``"symbolic"``, ``"guided"``, ``"export"``, or ``"auto"``: the first that accepts the model."""
    mode: str | None = None
    """The mode in which models are judged: ``"train"``, ``"eval"`` or ``"both"``; None for evaluation mode, and for
    passes also the mode of a factory's model."""
    form: str = "auto"
    """The form in which passes get programs, as ``--fx-form`` takes it; ``"auto"`` for the recognized form."""
    checks: tuple[Any, ...] = ()
    """Passes to try on random programs, named as in ``passes``."""
    hunts: tuple[Any, ...] = ()
    """Compilers and passes whose faults are searched for, as ``load_pass`` takes them."""
    minutes: float = 10.0
    """Minutes for each of ``hunts``."""
    known_faults: str | None = None
    """File with the keys of faults that ``hunts`` skip; None for none."""
    examples: int | None = None
    """Number of random programs for each of ``checks``; None for that of Hypothesis's settings."""
    mutate: int | str | None = None
    """Number of mutants of each of ``checks``, or a pass whose mutants are tried; None for none."""
    candidates: tuple[Any, ...] = ()
    """Candidates to judge in the place of ``reference``: ``package.module:attribute``, or modules and functions."""
    reference: Any | None = None
    """The reference of all candidates, named likewise, or the path of a file of answers."""
    save_answers: str | None = None
    """File to which the answers of models are saved, as typed by the user; None for none."""
    advise: str | None = None
    """Lower precision for which the layers to keep are advised; None for none."""
    against: str | None = None
    """Git revision, or path of another environment, whose passes are judged and timed beside these; None for none."""
    layers: tuple[str, ...] = ()
    """Layers whose outputs are saved: paths, patterns of paths, or names of classes."""
    inputs: Any | None = None
    """Inputs of the reference: ``package.module:attribute``, an example, or a function of a seed."""
    baseline: str | None = None
    """File of the earlier run whose speed-ups are compared, as typed by the user; None for none."""
    fail_slower: float | None = None
    """Largest relative slowdown against that run, or else against eager; None to fail no timing."""
    draw: str | None = None
    """Folder for drawings, as typed by the user; None for none."""
    report: str | None = None
    """Folder for the report, as typed by the user; None for none."""
    annotate: bool = False
    """True if failures are reported to a pull request on GitHub."""
    error_factor: float | None = None
    """Multiple of eager's own error that ``close`` allows in the working dtype; None for the contract's own."""
    detect: float | None = None
    """The relative change of all outputs that a comparison must detect; None for any."""
    isolate: bool = False
    """True if tests run in a child process."""
    timeout: float | None = None
    """Seconds that a test of a pass or a model may run; None for any, or under ``isolate`` for
    :data:`LONGEST_ISOLATED`."""
    memory_limit: int | None = None
    """MiB that a test may need under ``isolate``; None for most of the machine's free memory."""
    min_changes: int = 0
    """Least number of changes that a named pass must make in a model."""
    strict: bool = False
    """True if undecided results fail as well, such as a noisy timing, or a pass that changes less than before."""
    estimate: bool = False
    """True if estimated times are shown beside measured ones."""
    explicit: frozenset[str] = frozenset()
    """Flags of the options on the command line and in markers, without those of the ini file and ``addopts``."""
    inference: bool = False
    """True if passes are for inference: gradients are not compared, and random programs are in evaluation mode."""

    orders: bool = False
    """True if passes of each pipeline among ``checks`` run in drawn orders."""

    @property
    def used(self) -> bool:
        """True if a model, pass or candidate was named, so that the import of torch is worth its seconds."""
        return bool(
            self.models or self.passes or self.checks or self.hunts or self.mutated is not None or self.candidates
        )

    @property
    def mutants(self) -> int | None:
        """The number of mutants of each of ``checks``; None for none."""
        return self.mutate if isinstance(self.mutate, int) else None

    @property
    def mutated(self) -> Any | None:
        """The pass whose mutants are tried; None if there is none."""
        return None if isinstance(self.mutate, int) else self.mutate

    @property
    def answers(self) -> str | None:
        """The file of answers that models are compared with; None if there is none, or candidates have a reference."""
        is_file = isinstance(self.reference, str) and not self.candidates and is_answer_file(self.reference)
        return self.reference if is_file else None

    @property
    def reports(self) -> bool:
        """True if failures are recorded in more detail than the terminal shows."""
        return self.report is not None or self.annotate

    @property
    def longest(self) -> float | None:
        """Seconds that a test of a pass or a model may run; None for any time."""
        return LONGEST_ISOLATED if self.timeout is None and self.isolate else self.timeout


def is_answer_file(path: str) -> bool:
    """Return whether ``path`` is an existing file, or has the suffix of a file of answers: no name has."""
    return Path(path).is_file() or Path(path).suffix == ".safetensors"


OPTIONS = pytest.StashKey[Options]()
"""Key of the options in the stash of a :class:`pytest.Config`."""
ADDED = pytest.StashKey[list[str]]()
"""Key of the names of the built-in suites that settings in the ini file add to the user's tests."""


def add_options(parser: pytest.Parser) -> None:
    """Declare the options to pytest: on the command line, and as ``fx_…`` settings of the ini file."""
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
        help="Measure the paper's evaluation, all of it or these tables, and write it into results/. Earlier "
        "measurements on this machine with this code are kept. Example: --fx-tables=ir-complexity,fusion",
    )  # fmt: skip
    parser.addini("fx_tables", "Default of --fx-tables.", default=None)


def read_options(config: pytest.Config) -> Options:
    """Return the options of the command line of ``config``, or else of its ini file, each name once.

    Raises :class:`pytest.UsageError` for an unknown or invalid ini setting.
    """
    _require_settings(config)
    values = {option.name: _read(config, option) for option in TABLE}
    flags = {
        name: is_set(config, name) for name in ("annotate", "strict", "isolate", "estimate", "inference", "orders")
    }
    if flags["inference"]:
        values["mode"] = values["mode"] or "eval"
    if values["budget"] is None:
        values["budget"] = 0.0 if _is_given(config, "fx_rounds") else TIMING_BUDGET
    values["min_changes"] = values["min_changes"] or int(is_set(config, "require-change"))
    written = {str(argument).partition("=")[0] for argument in config.invocation_params.args}
    explicit = frozenset(flag for flag in FLAGS.values() if f"--fx-{flag}" in written)
    return Options(timing=not is_set(config, "no-timing"), explicit=explicit, **flags, **values)


def _require_settings(config: Any) -> None:
    """Raise :class:`pytest.UsageError` for an unknown setting; pytest itself only warns."""
    for setting in config._get_unknown_ini_keys():
        if setting.startswith("fx_"):
            settings = [*(option.setting for option in TABLE), *map(setting_of, (*SWITCHES, "tables"))]
            raise pytest.UsageError(
                f"{ini_file(config)} has {setting}, which is not a setting; there are {', '.join(settings)}"
            )


def ini_file(config: pytest.Config) -> str:
    """Return the name of the ini file, or ``"-o"`` if there is none."""
    return "-o" if config.inipath is None else config.inipath.name


def origin_of(config: pytest.Config, setting: str) -> str | None:
    """Return the source of a setting's value for a message; None if it is the command line."""
    return None if config.getoption(setting) is not None else f"{setting} in {ini_file(config)}"


def is_set(config: pytest.Config, flag: str) -> bool:
    """Return whether one of :data:`~pytest_fx.option_table.SWITCHES` is on the command line, or set in the ini file."""
    setting = setting_of(flag)
    try:
        return bool(config.getoption(setting) or config.getini(setting))
    except (ValueError, pytest.UsageError) as error:  # UsageError since pytest 9
        raise pytest.UsageError(f"{setting} in {ini_file(config)} must be true or false: {error}") from None


def _is_given(config: pytest.Config, setting: str) -> bool:
    return config.getoption(setting) is not None or bool(config.getini(setting))


def _read(config: pytest.Config, option: PluginOption) -> Any:
    value = config.getoption(option.setting)
    if value is None:
        value = config.getini(option.setting)
        if not value:
            return option.default
        if not option.repeatable:
            try:
                return option.parse(value)
            except argparse.ArgumentTypeError as error:
                raise pytest.UsageError(f"{option.setting} in {ini_file(config)} {error}") from None
    return tuple(dict.fromkeys(value)) if option.repeatable else value


def parameters_of(item: pytest.Item) -> dict[str, Any]:
    """Return the parameters of a test by name; none if it is not parametrized."""
    return getattr(getattr(item, "callspec", None), "params", {})


_KEYWORDS = {option.keyword: option for option in TABLE if option.flag not in OF_RUNS}
_SWITCHES = {
    "require_change": "min_changes", "no_timing": "timing", "strict": "strict", "estimate": "estimate",
    "inference": "inference", "orders": "orders",
}  # fmt: skip
"""Boolean keywords of the marker, with their fields of :class:`Options`."""


def options_of(node: pytest.Item | Any) -> Options:
    """Return the options of one test: the options of the run, changed by its markers ``@pytest.mark.fx(…)``.

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
                keywords = ", ".join([*_KEYWORDS, *_SWITCHES])
                raise pytest.UsageError(f"{node.nodeid}: the marker fx has no keyword {name!r}; it has {keywords}")
        try:
            explicit = options.explicit.union(FLAGS[name] for name in marker.kwargs)
            values = dict(_as_given(name, value) for name, value in marker.kwargs.items())
            if "rounds" in marker.kwargs:  # exactly this number
                values.setdefault("budget", 0.0)
            if values.get("budget", 0.0) is None:
                values["budget"] = TIMING_BUDGET
            options = replace(options, **values, explicit=explicit)
        except argparse.ArgumentTypeError as error:
            raise pytest.UsageError(f"{node.nodeid}: {error}") from None
    return options


def _as_given(name: str, value: Any) -> tuple[str, Any]:
    """Return the field of a marker's keyword, and its value, parsed as on the command line."""
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
