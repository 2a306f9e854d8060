"""The glossary, for those who read the page on paper or for the first time."""

from profkit.model.report import Report
from profkit.present.glossary import GLOSSARY
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill


def section(report: Report, options: Options) -> Section:
    """The glossary."""
    return Section("glossary", "Glossary", fill("glossary.html.j2", terms=GLOSSARY))
