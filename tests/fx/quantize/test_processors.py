"""8 bits are as accurate on processors without VNNI; ``make machines`` asks it of more, and runs all tests on each."""

import pytest
from machines import accuracy, accuracy_under


@pytest.mark.parametrize("limit", ["AVX2", "AVX2_VNNI"])
def test_eight_bits_are_as_accurate_with_fewer_instructions(limit):
    here, found = accuracy(), accuracy_under(limit)
    for network in ("perceptron", "convolutions"):
        assert found[network] > 38 and abs(found[network] - here[network]) < 0.5
        assert found[f"{network} on"] and "reference" not in found[f"{network} on"]
