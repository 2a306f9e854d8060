"""Growth is thinned out evenly and summed where it was measured together."""

from profkit.model.growth import MAX_POINTS, Growth, growth, together


def test_many_points_are_thinned_out_with_the_first_and_the_last() -> None:
    fit = growth(range(1, 1001), (2 * step for step in range(1, 1001)), range(1, 1001))
    assert fit is not None
    assert len(fit.steps) == MAX_POINTS
    assert (fit.steps[0], fit.steps[-1]) == (1, 1000)
    assert fit.n == fit.steps
    assert fit.bytes == tuple(2 * step for step in fit.steps)
    gaps = {after - before for before, after in zip(fit.steps, fit.steps[1:], strict=False)}
    assert gaps <= {16, 17}


def test_one_point_shows_no_growth() -> None:
    assert growth([1], [100]) is None
    assert growth([1, 2], [100, 200]) == Growth((1, 2), (100, 200))


def test_what_was_measured_at_the_same_steps_is_summed() -> None:
    first, second = Growth((1, 2), (10, 20), (1, 2)), Growth((1, 2), (1, 2), (3, 4))
    assert together((None, first, second)) == Growth((1, 2), (11, 22), (4, 6))
    assert together((first, Growth((1, 9), (5, 5)))) == first
    assert together((first, Growth((1, 2), (5, 5)))) == Growth((1, 2), (15, 25))
    assert together((None,)) is None
