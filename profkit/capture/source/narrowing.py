"""Finds the line of an operator that a function ran without a call.

Between two calls whose lines are known, the operators ran in order on places between those lines.
A line is exact only if no other place is possible.
"""

from collections.abc import Sequence

from profkit.capture.source.functions import Function, Point


def lines_between(
    function: Function, before: int | None, after: int | None, ops: Sequence[str]
) -> list[int | None]:
    """The line of each operator that ran in a function between two of its calls.

    Args:
        before: Line of the last call before them, or None.
        after: Line of the next call after them, or None.
        ops: The operators' names in order.

    Returns:
        For each operator its line, or None if several are possible.
    """
    names = [op.removeprefix("aten::").removesuffix("_") for op in ops]
    points = _points_between(function, before, after)
    earliest = _first_fit(points, names)
    latest = _first_fit(points[::-1], names[::-1])
    if earliest is not None and latest is not None:
        pairs = zip(earliest, latest[::-1], strict=True)
        found = [first if first == last else None for first, last in pairs]
    else:
        found = [_only_line(points, name) for name in names]
    if before is not None and before == after and not function.loop_around(before):
        return [before for _ in found]
    return found


def _points_between(function: Function, before: int | None, after: int | None) -> list[Point]:
    """The points that can have run, in order."""
    end = function.end_of_with(after, before)
    if end is not None:
        after = end
    first = before if before is not None else 0
    last = after if after is not None else 1 << 62
    loop = function.loop_around(before)
    if first <= last:
        straight = [p for p in function.points if first <= p.line <= last]
        if end is None and after is not None:
            return [_repeated(p, before, after) for p in straight]
        again = [p for p in function.points if loop and loop[0] <= p.line < first]
        return [_repeated(p, before, after) for p in straight + again]
    # A new iteration: from the line before to the end of the loop, and from its start to the next.
    around = [one for one in function.loops if one[0] <= last and first <= one[1]]
    start, stop = max(around, default=(0, 1 << 62))
    rest = [p for p in function.points if first <= p.line <= stop]
    return rest + [p for p in function.points if start <= p.line <= last]


def _repeated(point: Point, before: int | None, after: int | None) -> Point:
    """The point, as one that runs many times if its whole loop is between the two calls."""
    if point.loop is None or not point.single:
        return point
    first, last = point.loop
    if any(line is not None and first <= line <= last for line in (before, after)):
        return point
    return Point(point.line, point.ops, single=False, loop=point.loop)


def _first_fit(points: Sequence[Point], names: Sequence[str]) -> list[int] | None:
    """Each operator's first possible line, if they ran in order; None if that is impossible."""
    lines: list[int] = []
    index = 0
    for name in names:
        while index < len(points) and not points[index].can_run(name):
            index += 1
        if index == len(points):
            return None
        lines.append(points[index].line)
        index += points[index].single
    return lines


def _only_line(points: Sequence[Point], name: str) -> int | None:
    lines = {point.line for point in points if point.can_run(name)}
    return lines.pop() if len(lines) == 1 else None
