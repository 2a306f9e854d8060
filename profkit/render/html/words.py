"""What the words of the page mean, for those who read it on paper or for the first time."""

from profkit.engine.glossary import GLOSSARY
from profkit.model.report import Report
from profkit.render.html._options import Options
from profkit.render.html._section import Section, fill


def section(report: Report, options: Options) -> Section:
    """The glossary.

    Args:
        report: Nothing of it is needed.
        options: Nothing of them is needed.
    """
    return Section("glossary", "Words", fill("glossary.html.j2", words=GLOSSARY))
