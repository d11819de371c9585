"""All programs of the corpus, in order of definition; importing this module defines them."""

from __future__ import annotations

from . import function_programs, module_programs, operator_programs
from .programs import REGISTRY, Program

DEFINITIONS = (operator_programs, function_programs, module_programs)
PROGRAMS: tuple[Program, ...] = tuple(REGISTRY.values())
