"""Tables by name, so that a command line can ask for ``fusion``."""

from __future__ import annotations

from fx.registry import Registry
from pytest_fx.errors import TableError
from pytest_fx.tables.table import Table

_tables: Registry[Table] = Registry("table", "tables", TableError)


def register_table(table: Table) -> Table:
    """Make ``table`` known under its name and return it.

    Raises :class:`~pytest_fx.errors.TableError` if another table has the name already.
    """
    _tables.register(table.name, table)
    return table


def get_table(name: str) -> Table:
    """Return the table registered as ``name``.

    Raises :class:`~pytest_fx.errors.TableError`, which lists the nearest names, if there is none.
    """
    return _tables.get(name)


def list_tables() -> list[str]:
    """Return the names of all tables in alphabetical order."""
    return _tables.names()
