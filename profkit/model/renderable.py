"""How reports and comparisons show themselves in terminals and notebooks."""

from typing import Any


class Renderable:
    """A report or comparison that prints as text and displays as HTML in notebooks."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # IPython prefers a class's own __repr__, which dataclasses have, to an inherited method.
        cls._repr_pretty_ = Renderable._repr_pretty_  # type: ignore[method-assign]

    def __str__(self) -> str:
        return self._rendered("text")

    def _repr_html_(self) -> str:
        """HTML for notebooks, without scripts or external resources.

        Source: "Rich output" in IPython's documentation.
        """
        return self._rendered("fragment")

    def _repr_markdown_(self) -> str:
        """Markdown, for frontends without HTML."""
        return self._rendered("md")

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:  # noqa: ANN401, FBT001  (IPython's)
        """Text, for IPython's prompt and the plain form of a notebook's output."""
        printer.text(str(self))

    def _rendered(self, name: str) -> str:
        # Through the public function: renderers are layers above the model.
        import profkit

        rendered: bytes = profkit.render(self, name)  # type: ignore[arg-type]
        return rendered.decode().rstrip("\n")
