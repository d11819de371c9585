"""The commands ``python -m pytest_fx judge``, and on reports ``merge`` and ``compare``."""

import sys

from pytest_fx.lazy import load

if __name__ == "__main__":
    if sys.argv[1:2] == ["judge"]:
        sys.exit(load("pytest_fx.candidates.judge_command").main(sys.argv[2:]))
    sys.exit(load("pytest_fx.report.report_commands").main())
