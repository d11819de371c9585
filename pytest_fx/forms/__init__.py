"""The forms that people write passes in: how each is recognized, what it is given, and how its result is read back.

One file is one form. A pass on programs that this library captures has no file here. All other forms are given what
torch itself makes of the model, a ``torch.export.ExportedProgram`` or what comes of one, with no node of ours in it.
What they return is called beside the model.
"""

from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import CalledAsModule, Form, FormedPass, FormResult, UnreadableResultError, called_as_module
from pytest_fx.forms.table import CAPTURED, TABLE, TO_TRY, form_called, form_name, form_names, is_guessed, recognized

__all__ = [
    "CAPTURED",
    "TABLE",
    "TO_TRY",
    "CalledAsModule",
    "ExportedSource",
    "Form",
    "FormResult",
    "FormedPass",
    "Level",
    "UnreadableResultError",
    "called_as_module",
    "form_called",
    "form_name",
    "form_names",
    "is_guessed",
    "recognized",
]
