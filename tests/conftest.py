"""What every test can use."""

import os

# One thread computes as fast as two on programs of this size, and does not wait for a core that something else uses.
# Set before torch is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["pytester"]
