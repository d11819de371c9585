"""The forms of passes: how each is recognized, which program it gets, and how its result is read back.

Each form has its own file, but for passes on programs that this library captures. All other forms get a program from
torch itself: a ``torch.export.ExportedProgram``, or a program derived from it, without any node of ours. Their results
are called beside the model.
"""

from pytest_fx.forms.exported_source import ExportedSource, Level, RecordedSource
from pytest_fx.forms.form import (
    CalledAsModule,
    Form,
    FormedPass,
    FormResult,
    UnreadableResultError,
    called_as_module,
    unwrapped,
)
from pytest_fx.forms.module import MODULE
from pytest_fx.forms.table import (
    ATEN,
    CAPTURED,
    TABLE,
    TO_TRY,
    form_called,
    form_name,
    form_names,
    is_guessed,
    is_unclear,
    recognized,
)

__all__ = [
    "ATEN",
    "CAPTURED",
    "MODULE",
    "TABLE",
    "TO_TRY",
    "CalledAsModule",
    "ExportedSource",
    "Form",
    "FormResult",
    "FormedPass",
    "Level",
    "RecordedSource",
    "UnreadableResultError",
    "called_as_module",
    "form_called",
    "form_name",
    "form_names",
    "is_guessed",
    "is_unclear",
    "recognized",
    "unwrapped",
]
