"""The counts of a search's programs, and its report if no law was broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytest_fx.search.coverage import Coverage

NOT_BY_EDITS = "by none of its edits, but by a call of eliminate_dead_code(), for example"
"""Explains a change of a program that no edit of the pass made."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of the programs of a search, by outcome."""

    programs: int = 0
    """Programs that the pass was tried on."""
    changed: int = 0
    """Programs that its edits changed."""
    varied: int = 0
    """Further programs that its edits changed: variations of these, and programs that grew toward the pass."""
    tidied: int = 0
    """Programs that changed although no edit did it: by ``eliminate_dead_code()`` alone, say."""
    refused: int = 0
    """Programs that it refused with a ``PassError``."""
    untranslated: int = 0
    """Programs that torch.fx cannot hold, for a pass written for torch.fx; the pass was not run on them."""
    uncompared: int = 0
    """Programs that its edits changed, but with nothing to compare: their results are empty or not finite."""
    unjudged: int = 0
    """Programs on which the same law is broken without the pass: by the capture itself, or by a tool of torch.fx."""
    places: int = 0
    """Programs that were cut out of models, around the places where the pass acts."""
    models: tuple[str, ...] = ()
    """The searched models, each with the number of its places."""

    @property
    def acted(self) -> int:
        """Return the total number of programs that the pass changed."""
        return self.changed + self.varied

    def plus(self, **more: int) -> Counts:
        """Return the counts with additions to some of them."""
        return replace(self, **{name: getattr(self, name) + number for name, number in more.items()})

    def looked_through(self, model: str, places: int, why: str = "") -> Counts:
        """Return the counts with the places of a model, or the reason for none."""
        outcome = f"{places} in {model}" if places else f"none in {model}{why and f', {why}'}"
        return replace(self, places=self.places + places, models=(*self.models, outcome))


@dataclass(frozen=True, slots=True)
class CheckReport(Counts):
    """The result of a search that found no broken law."""

    name: str = ""
    """The name of the pass."""
    laws: tuple[str, ...] = ()
    """The laws that it kept."""
    coverage: Coverage | None = None
    """The part of its own code that the programs reached; None if none of its code could be traced."""
    seeds: int = 0
    """Parts of changed programs around which properties were varied."""
    trials: int = 0
    """Variations of these on which the pass acted."""
    varied_properties: tuple[str, ...] = ()
    """Properties that were varied in some trial."""
    unvaried_properties: tuple[str, ...] = ()
    """Properties whose variations never let the pass act."""
    wanted: int = 0
    """The number of changed programs at which the search ends; it also ends after as many programs again."""

    orders: int = 0
    """The number of different orders in which passes of a pipeline ran; 0 if none were drawn."""

    def __str__(self) -> str:
        refused = f", refused {self.refused}" if self.refused else ""
        counts = (
            f"{self.name} changed {self.changed} of {self.programs} programs{refused} and kept {len(self.laws)} laws"
        )
        counts += f", also on {self.varied} programs near to these" if self.varied else ""
        reached, listed = ("", "") if self.coverage is None else (f"; {self.coverage}", self.coverage.listed)
        return "\n  ".join([f"{counts}{reached}", *self._notes(), *listed.splitlines()])

    def _notes(self) -> Iterator[str]:
        """Yield further notes on the counts, a line each."""
        if self.trials:
            properties = f"{len(self.varied_properties)} properties of {self.seeds} programs were varied"
            yield f"{properties}, one to four at a time, in {self.trials} trials on which it acted"
        if self.orders:
            yield f"its passes ran in {self.orders} orders, with and without each of them"
        if self.unvaried_properties:
            yield f"it acts on no program with another one of these: {', '.join(self.unvaried_properties)}"
        if self.acted < self.wanted:
            yield f"it looked for {self.wanted} that are changed, and did not find as many in {self.programs} programs"
        if self.models:
            yield f"{self.places} were places of models where it acts: {', '.join(self.models)}"
        if self.tidied:
            yield f"{self.tidied} others were changed {NOT_BY_EDITS}"
        if self.untranslated:
            yield f"{self.untranslated} were not judged: torch.fx cannot hold them"
        if self.uncompared:
            yield f"{self.uncompared} were not judged: what they return is empty or not finite"
        if self.unjudged:
            yield f"{self.unjudged} were not judged: without the pass, the law that it seems to break is broken, too"
