"""Regular expressions that are compiled when they are first used."""

import re
from typing import TYPE_CHECKING, Any, AnyStr


class _Lazy:
    """A pattern that is compiled when a method or an attribute is first used."""

    def __init__(self, pattern: Any, flags: int = 0) -> None:  # noqa: ANN401  (text or bytes)
        self.pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (as in re.Pattern)
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(re.compile(self.pattern, self._flags), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:

    def regex(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
        """Compile a constant of a module at its first use: a run needs a fifth of all patterns."""
        ...

else:
    regex = _Lazy
