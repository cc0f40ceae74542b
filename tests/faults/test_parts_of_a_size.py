"""The parts of a size add up to it."""

import itertools

import pytest

from faults.method import Part


@pytest.mark.parametrize("count", [1_000, 118, 7])
@pytest.mark.parametrize("of_parts", [1, 3, 7])
def test_parts_of_a_size_together_are_the_size(count, of_parts):
    """Each case number is in exactly one part."""
    parts = [Part(number, of_parts) for number in range(1, of_parts + 1)]
    numbers = [number for part in parts for number in part.span(count)]
    assert numbers == list(range(count))
    assert sum(part.count(count) for part in parts) == count


def test_parts_seeds_are_far_apart():
    """A method counts its seeds up from a thousand times its own seed: no two parts
    share one of them."""
    seeds = [Part(number, 3).seed(20_261_127) for number in (1, 2, 3)]
    assert Part(1, 1).seed(20_261_127) == 20_261_127
    assert min(b - a for a, b in itertools.pairwise(seeds)) >= 1_000_000


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1", "1/0", "1/1000", "a/b"])
def test_part_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"part|invalid literal"):
        Part.of(text)
