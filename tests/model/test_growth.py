"""Growth is thinned out evenly and summed where it was measured together."""

from profkit.model.growth import MAX_POINTS, Growth, growth, together


def test_many_points_are_thinned_out_with_the_first_and_the_last() -> None:
    found = growth(range(1, 1001), (2 * step for step in range(1, 1001)), range(1, 1001))
    assert found is not None
    assert len(found.steps) == MAX_POINTS
    assert (found.steps[0], found.steps[-1]) == (1, 1000)
    assert found.n == found.steps
    assert found.bytes == tuple(2 * step for step in found.steps)
    gaps = {after - before for before, after in zip(found.steps, found.steps[1:], strict=False)}
    assert gaps <= {16, 17}


def test_one_point_shows_no_growth() -> None:
    assert growth([1], [100]) is None
    assert growth([1, 2], [100, 200]) == Growth((1, 2), (100, 200))


def test_what_was_measured_at_the_same_steps_is_summed() -> None:
    one, other = Growth((1, 2), (10, 20), (1, 2)), Growth((1, 2), (1, 2), (3, 4))
    assert together((None, one, other)) == Growth((1, 2), (11, 22), (4, 6))
    assert together((one, Growth((1, 9), (5, 5)))) == one
    assert together((one, Growth((1, 2), (5, 5)))) == Growth((1, 2), (15, 25))
    assert together((None,)) is None
