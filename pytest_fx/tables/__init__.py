"""The evaluation: one table a file, with the paper's numbers beside those that ``pytest --fx-tables`` measures.

>>> from pytest_fx.tables import get_table, list_tables
>>> "ir-complexity" in list_tables()
True
>>> get_table("ir-complexity").paper["resnet50, fx, no leaf modules"]
{'lines': 445}

A table is added by a call of :func:`register_table` in its file and an import of that file here.
"""

from pytest_fx.errors import TableError
from pytest_fx.tables.rows import (
    fusion,
    ir_complexity,
    lowering,
    quantization,
    scheduling,
    simulation,
    transform_times,
)
from pytest_fx.tables.table import (
    Chart,
    Claim,
    Column,
    Entry,
    NotRun,
    Row,
    Scale,
    Series,
    Table,
    Timeline,
    get_table,
    list_tables,
    register_table,
)

__all__ = [
    "Chart",
    "Claim",
    "Column",
    "Entry",
    "NotRun",
    "Row",
    "Scale",
    "Series",
    "Table",
    "TableError",
    "Timeline",
    "fusion",
    "get_table",
    "ir_complexity",
    "list_tables",
    "lowering",
    "quantization",
    "register_table",
    "scheduling",
    "simulation",
    "transform_times",
]
