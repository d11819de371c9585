"""The machinery of passes: contracts, options, the registry, edits, and pipelines with their checks and reports.

:mod:`fx.passes` has the passes themselves, and the public names of this room.
"""
