"""What every renderer shows of a report: headline, tables, timeline, flame graphs, glossary."""
