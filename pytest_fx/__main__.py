"""The commands on reports: ``python -m pytest_fx merge`` and ``python -m pytest_fx compare``."""

import sys

from pytest_fx.report.report_commands import main

if __name__ == "__main__":
    sys.exit(main())
