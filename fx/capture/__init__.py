"""From Python to a graph: the tracer, signatures, what is patched meanwhile (paper, sections 4.1, 5.1 to 5.3)."""
