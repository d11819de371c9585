"""8 bits are as accurate on processors without VNNI; ``make machines`` asks it of more, and runs all tests on each."""

from machines import accuracy, accuracy_under, less_accurate


def test_eight_bits_are_as_accurate_with_fewer_instructions():
    assert less_accurate(accuracy_under("AVX2"), accuracy()) == []
