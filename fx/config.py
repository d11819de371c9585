"""Settings that client code of torch.fx reads in its module of this name; constants here, where tracers have flags."""

from typing import Final

do_not_emit_stack_traces: Final = False
"""Whether tracers whose ``record_stack_traces`` is set leave them out all the same."""
