"""Saved answers: what a model computes on one machine, as the reference for another machine, release or device.

A file has the inputs, the outputs, the outputs in float64, and values of chosen layers. It is data: reading it runs no
code. Nothing is captured, so that models that cannot be captured have answers, too.
"""

from pytest_fx.answers.answer_file import Answers, read_answers, write_answers
from pytest_fx.answers.comparison import assert_equal_to_answers, require_answers
from pytest_fx.answers.recording import answers_of, save_answers

__all__ = [
    "Answers",
    "answers_of",
    "assert_equal_to_answers",
    "read_answers",
    "require_answers",
    "save_answers",
    "write_answers",
]
