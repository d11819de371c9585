"""Draws for each program: options of a pass, and the order of a pipeline.

Options may depend on the program: the place where a pass cuts, or the modules that it keeps whole.

Such options have no useful default, so a pass with defaults may do nothing. A pass with a method ``options_for`` yields
options to try on a program, and the search takes one of them for each program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from fx import GraphModule
from fx.arguments import expect_all
from fx.errors import PassError
from fx.pipelines.pass_options import options_of
from fx.pipelines.pipeline import PassPipeline
from fx.pipelines.registered_passes import write_pass
from pytest_fx.harness.pass_run import parts_of


def takes_options_for_programs(pass_: Any) -> bool:
    """Return whether a pass, or one of a pipeline, yields options to try on a program."""
    return any(_options_for(part) is not None for part in parts_of(pass_))


def with_drawn_options(pass_: Any, program: GraphModule, random: Random) -> Any:
    """Return the pass with some of its options for ``program``; explicit options stay.

    Raises :class:`~fx.errors.PassError` if the pass yields something else than options by name.
    """
    if isinstance(pass_, PassPipeline):
        parts = [with_drawn_options(part, program, random) for part in pass_.passes]
        return PassPipeline(parts, pass_.listeners, pass_.name)
    ask = _options_for(pass_)
    if ask is None:
        return pass_
    what = "options_for yields options by name, such as {'at': ('relu',)}"
    choices = expect_all(ask(program), lambda each: isinstance(each, Mapping), what, error=PassError)
    defaults = {option.name: option.default for option in options_of(pass_)}
    explicit = {name for name, default in defaults.items() if getattr(pass_, name) != default}
    free = [options for options in choices if explicit.isdisjoint(options)]
    return dataclasses.replace(pass_, **random.choice(free)) if free else pass_


def with_drawn_order(pipeline: PassPipeline, random: Random) -> PassPipeline:
    """Return a pipeline of at least two passes of ``pipeline``, in any order."""
    count = random.randint(2, len(pipeline.passes))
    return PassPipeline(random.sample(pipeline.passes, count), pipeline.listeners, pipeline.name)


def without_one(pass_: Any) -> Iterator[Any]:
    """Yield a pipeline without each of its passes; a single remaining pass is not in a pipeline."""
    if isinstance(pass_, PassPipeline):
        for place in range(len(pass_.passes)):
            rest = (*pass_.passes[:place], *pass_.passes[place + 1 :])
            yield rest[0] if len(rest) == 1 else PassPipeline(rest, pass_.listeners, pass_.name)


def written_with_options(pass_: Any) -> str:
    """Return the pass as text, in the form of a command line."""
    return str(pass_) if isinstance(pass_, PassPipeline) else write_pass(pass_)


def _options_for(pass_: Any) -> Callable[[GraphModule], Any] | None:
    return None if isinstance(pass_, type) else getattr(pass_, "options_for", None)
