"""Options whose values are found at run time: report formats and rules."""

from collections.abc import Sequence

import click

from profkit.cli._suggest import did_you_mean


class FormatChoice(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """The name of a renderer. The renderers are imported when one is asked for."""

    name = "format"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002  (click's signature)
        """The names of all renderers, as ``[json|text]``."""
        return f"[{'|'.join(_formats())}]"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Check that there is such a renderer."""
        known = _formats()
        if value not in known:
            there = ", ".join(known)
            meant = did_you_mean(str(value), known)
            self.fail(f"There is no report format {value!r}, only {there}.{meant}", param, ctx)
        return str(value)


def _formats() -> tuple[str, ...]:
    from profkit.engine.renderer import renderers

    return tuple(each.INFO.name for each in renderers())


def split_rules(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> tuple[str, ...]:
    """Check rules given as ids, names or beginnings of ids, several of them behind commas.

    Args:
        ctx: The command's context.
        param: The option.
        values: Its values, one for each time that it was given.

    Raises:
        click.BadParameter: If a word names no rule.
    """
    words = [word.strip() for value in values for word in value.split(",") if word.strip()]
    if words:
        from profkit.engine.registry import matches, rules

        cards = [rule.INFO for rule in rules()]
        for word in words:
            if not any(matches(card, word) for card in cards):
                known = [name for card in cards for name in (card.id, card.name)]
                meant = did_you_mean(word, known)
                message = f"No rule is called {word!r}.{meant} `profkit rules` lists them."
                raise click.BadParameter(message, ctx, param)
    return tuple(words)
