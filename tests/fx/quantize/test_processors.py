"""8 bits are as accurate on processors without VNNI; ``make machines`` asks it of more, and runs all tests on each."""

import pytest
from machines import accuracy, accuracy_under, figures_under, less_accurate

NETWORKS = ("perceptron", "convolutions")


def divides(figures, network):
    """Return whether all layers ran on kernels that add products in 16 bits, whose activations are divided for it."""
    return all(name.endswith(" in halves") for name in figures[f"{network} on"])


def test_eight_bits_are_as_accurate_with_fewer_instructions_also_where_a_program_was_saved_with_others(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    saved_here, saved_there = accuracy(tmp_path / "here"), accuracy_under("AVX2", tmp_path / "there")
    loaded_there, loaded_here = accuracy_under("AVX2", tmp_path / "here"), accuracy(tmp_path / "there")
    assert less_accurate(saved_there, saved_here) == []
    for network in NETWORKS:
        assert all(
            abs(result[network] - saved_here[network]) < 0.5 for result in (saved_there, loaded_there, loaded_here)
        )
        assert divides(loaded_there, network) == divides(saved_there, network)
        assert divides(loaded_here, network) == divides(saved_here, network)


@pytest.mark.thorough
def test_activations_of_seven_bits_are_computed_undivided_and_larger_ones_right():
    figures = figures_under("AVX2", "seven")
    errors = {name: value for name, value in figures.items() if not name.endswith(" on")}
    assert len(errors) == 10 and all(value < 1e-4 for value in errors.values()), errors
    undivided = [name for key, names in figures.items() if key.endswith(", 127 on") for name in names]
    assert undivided and not [name for name in undivided if name.endswith("in halves")]
