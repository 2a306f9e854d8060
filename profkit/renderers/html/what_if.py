"""The findings as switches, and the step time that a replay predicts without the chosen ones."""

from profkit.engine.what_if import MAX_SWITCHES, predict_combinations
from profkit.model.report import Report
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import cell
from profkit.renderers.html.findings import short_place
from profkit.units import format_ns


def build_section(report: Report, options: Options) -> Section | None:
    """Return a switch for each finding that costs time, or None without any or a recording."""
    if options.recording is None:
        return None
    numbered = [
        (number, finding)
        for number, finding in enumerate(report.findings, start=1)
        if finding.change is not None
    ][:MAX_SWITCHES]
    if not numbered:
        return None

    # A browser cannot replay a recording: the page has the times of the combinations of switches,
    # by a number with a bit for each that is on.
    ctx = options.recording.context
    replayed = predict_combinations(
        ctx, [finding.change for _, finding in numbered if finding.change]
    )
    before_ns = replayed.times[0].after_ns
    together = replayed.times[(1 << replayed.n_changes) - 1]

    switches = [
        {
            "number": number,
            "title": cell(finding.title),
            "place": short_place(finding, options),
            "saving_ns": before_ns - replayed.times[1 << i].after_ns,
        }
        for i, (number, finding) in enumerate(numbered)
    ]

    body = fill(
        "what_if.html.j2",
        switches=switches,
        is_per_step=bool(ctx.steps),
        before_ns=before_ns,
        together=together,
        is_bound=ctx.is_unexplained,
    )

    numbers = sorted(replayed.times)
    data = {
        "combinations": numbers,
        "afterNs": [replayed.times[number].after_ns for number in numbers],
        "minAfterNs": [replayed.times[number].min_after_ns for number in numbers],
    }
    causes = "the finding" if len(switches) == 1 else f"{len(switches)} findings"
    figure = f"{format_ns(before_ns)}, without {causes} {format_ns(together.after_ns)}"
    return Section("what-if", "What if", body, ("what_if.js",), data, figure)
