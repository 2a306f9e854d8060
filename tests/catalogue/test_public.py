"""What users rely on is what the record says, so that no change of it is an accident."""

from tests.catalogue.public import RECORD, list_public

WHAT_TO_DO = (
    "A name, option, setting, rule or field that users rely on has changed. If that is not meant, "
    "undo it. If it is: what is added needs nothing else; what goes or changes its meaning needs a "
    "release in between that has both, a changelog entry, and the next major version "
    "(docs/stability.md). Then run `python -m tests.catalogue.public`, and commit the record."
)


def test_what_users_rely_on_is_as_recorded() -> None:
    recorded = RECORD.read_text(encoding="utf-8").splitlines()
    public = list_public()
    gone, added = sorted({*recorded} - {*public}), sorted({*public} - {*recorded})
    assert (gone, added) == ([], []), WHAT_TO_DO
    assert public == recorded, "the order of lines"

    kinds = {line.partition(" ")[0] for line in public}
    assert len(kinds) == 9, "names, commands, exit codes, settings, variables, rules and so on"
