"""Settings that client code of torch.fx reads in its module of this name; constants here, where tracers have flags."""

from typing import Final

do_not_emit_stack_traces: Final = False
"""True if tracers leave stack traces out even if their ``record_stack_traces`` is set."""
