"""8 bits are as accurate on processors without VNNI; ``make machines`` asks it of more, and runs all tests on each."""

import pytest
from machines import accuracy, accuracy_under

NETWORKS = ("perceptron", "convolutions")


def divides(found, network):
    """Whether all layers ran on kernels that add products in 16 bits, whose activations are divided for it."""
    return all(name.endswith(" in halves") for name in found[f"{network} on"])


@pytest.mark.parametrize("limit", ["AVX2", "AVX2_VNNI"])
def test_eight_bits_are_as_accurate_with_fewer_instructions(limit):
    here, found = accuracy(), accuracy_under(limit)
    for network in NETWORKS:
        assert found[network] > 38 and abs(found[network] - here[network]) < 0.5
        assert found[f"{network} on"] and "reference" not in found[f"{network} on"]


def test_a_program_that_was_saved_with_other_instructions_chooses_its_kernels_anew(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    saved_here, saved_there = accuracy(tmp_path / "here"), accuracy_under("AVX2", tmp_path / "there")
    loaded_there, loaded_here = accuracy_under("AVX2", tmp_path / "here"), accuracy(tmp_path / "there")
    for network in NETWORKS:
        assert all(abs(one[network] - saved_here[network]) < 0.5 for one in (saved_there, loaded_there, loaded_here))
        assert divides(loaded_there, network) == divides(saved_there, network)
        assert divides(loaded_here, network) == divides(saved_here, network)
