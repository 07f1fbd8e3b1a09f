"""Hours, samples and boundaries."""

from fractions import Fraction

import pytest

from harness.core.clock import boundary_at, exact, hour_to_samples, samples_to_hours


def test_a_float_means_the_decimal_that_was_written() -> None:
    """0.1 is one tenth, and ten of them are one."""
    assert exact(0.1) * 10 == 1
    assert exact(3) == 3


@pytest.mark.parametrize(
    ("samples", "step"), [(0, 0), (Fraction(1, 1000), 1), (127, 1), (128, 1), (Fraction(128001, 1000), 2), (129, 2)]
)
def test_the_boundary_is_the_first_that_holds_as_many_samples(samples: Fraction | int, step: int) -> None:
    """Due at sample s means: after the fewest whole batches of 128 that hold s."""
    assert boundary_at(samples, 128) == step


def test_an_hour_maps_to_samples_without_rounding() -> None:
    """44.8 of 56 hours is 4/5 of the samples exactly, though neither 44.8 nor 0.8 is a binary fraction."""
    assert hour_to_samples(44.8, job_h=56, total_samples=1000) == 800
    assert samples_to_hours(800, job_h=56, total_samples=1000) == pytest.approx(44.8, rel=1e-15)
