"""Makes names from a recording safe and short to display.

A trace is untrusted: its names may contain terminal escapes, line breaks or right-to-left marks,
which :func:`visible` escapes. :func:`short_kernel` shortens a C++ kernel's name to the parts that
distinguish it from others; the JSON report has the full name.
"""

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Final

from profkit.patterns import regex

_ELLIPSIS: Final = "…"
_DROPPED_PREFIXES: Final = regex(
    r"^(?:void|static|__global__|\s)+(?=\S)|^(?:std::enable_if<.*?>::type )"
)
_NAMESPACE: Final = regex(r"(?:\(anonymous namespace\)|(?<!\w)[A-Za-z_]\w*)::")
_WORD: Final = regex(r"[A-Za-z_]\w*")
_LENGTH: Final = regex(r"[1-9]\d{0,2}")
_FUNCTOR: Final = regex(r"[Ff]unctor|Ops?$|_kernel_cuda$|_kernel_impl$")
_FUNCTOR_SUFFIX: Final = regex(r"_kernel_(?:cuda|impl)$")
_WRAPPERS: Final = frozenset(
    {"BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "UnaryFunctor", "gpu_kernel_impl"}
)
"""Functors that only wrap another functor."""
_MIN_SPECIFIC: Final = 10
"""A kernel's name shorter than this (``Kernel``, ``kentry``) is not specific enough."""
_UNSAFE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS: Final = frozenset({"\u200d"})


def visible(text: str) -> str:
    r"""Escape everything in a text that could affect a terminal.

    Control characters, terminal escapes, line breaks, bidirectional marks and unassigned characters
    become escapes such as ``\x1b``.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _is_safe(char) else _escape(char) for char in text)


def _is_safe(char: str) -> bool:
    return char in _JOINERS or unicodedata.category(char) not in _UNSAFE_CATEGORIES


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def short_kernel(name: str, width: int | None = None) -> str:
    """Return a kernel's name without return type, namespaces and arguments.

    ``void at::native::vectorized_elementwise_kernel<4, …>(int, …)`` becomes
    ``vectorized_elementwise_kernel<…>``. Kernels that only apply a functor are distinguished by
    the functor, so its name is included if it fits:
    ``vectorized_elementwise_kernel<…CUDAFunctor_add…>``. A mangled name is demangled up to its
    first template.

    Args:
        name: The name as recorded.
        width: Maximum number of characters; None for no limit.
    """
    plain = _DROPPED_PREFIXES.sub("", name.strip())
    head, template = _split_mangled(name) or _split_template(plain)
    head = _NAMESPACE.sub("", head).strip() or name.strip()

    short = head
    if template is not None:
        functor = _find_functor(template, any_name=len(head) < _MIN_SPECIFIC)
        short = f"{head}<{_ELLIPSIS}{functor}{_ELLIPSIS}>" if functor else f"{head}<{_ELLIPSIS}>"
        if width is not None and len(head) >= _MIN_SPECIFIC and len(short) > width:
            short = f"{head}<{_ELLIPSIS}>"
    return short if width is None else middle_cut(short, width)


def _split_template(text: str) -> tuple[str, str | None]:
    """Return a name up to its first top-level ``<`` or ``(``, and the text inside the ``<…>``."""
    hidden = text.replace("(anonymous namespace)", "_" * len("(anonymous namespace)"))
    angle = hidden.find("<")
    paren = hidden.find("(")
    if angle <= 0 or (0 < paren < angle):
        return (text[:paren] if paren > 0 else text), None

    depth = 0
    for place in range(angle, len(hidden)):
        depth += (hidden[place] == "<") - (hidden[place] == ">")
        if depth == 0:
            return text[:angle], text[angle + 1 : place]
    return text[:angle], text[angle + 1 :]


def _split_mangled(name: str) -> tuple[str, str | None] | None:
    """Return the last part of a mangled nested name and the names in its template, or None.

    Source: Itanium C++ ABI, section 5.1 "External Names (a.k.a. Mangling)".
    """
    if not name.startswith("_ZN"):
        return None

    # Each part is its length in digits and its text; an "I" begins the template's arguments.
    place, last = len("_ZN"), ""
    while digits := _LENGTH.match(name, place):
        end = digits.end() + int(digits.group())
        last, place = name[digits.end() : end], end
    if not last:
        return None
    if name[place : place + 1] != "I":
        return last, None

    names = []
    for digits in _LENGTH.finditer(name, place):
        word = name[digits.end() : digits.end() + int(digits.group())]
        if len(word) >= _MIN_SPECIFIC and _WORD.fullmatch(word):
            names.append(word)
    return last, " ".join(names)


def _find_functor(template: str, *, any_name: bool) -> str | None:
    """Find the name of the first functor in template arguments.

    Args:
        template: The arguments.
        any_name: Accept any long name, because the kernel's name itself is not specific.
    """
    names: list[str] = [name for name in _WORD.findall(template) if name not in _WRAPPERS]
    for name in names:
        if _FUNCTOR.search(name):
            return _FUNCTOR_SUFFIX.sub("", name)
    if any_name:
        return next((name for name in names if len(name) >= _MIN_SPECIFIC), None)
    return None


def middle_cut(text: str, width: int) -> str:
    """Shorten a text in the middle to at most ``width`` characters (at least 1)."""
    if len(text) <= width:
        return text
    if width <= 1:
        return _ELLIPSIS[:width]
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}{_ELLIPSIS}{text[len(text) - tail :] if tail else ''}"


def tail_cut(path: str, width: int) -> str:
    """Shorten a path at the front to at most ``width`` characters: ``…/llama3/model.py:340``."""
    if len(path) <= width:
        return path
    parts = path.split("/")
    for place in range(1, len(parts)):
        cut = "/".join((_ELLIPSIS, *parts[place:]))
        if len(cut) <= width:
            return cut
    return middle_cut(parts[-1], width)


def short_path(file: str, base: str = "") -> str:
    """Return a path relative to the folder ``base`` if it is inside; backslashes become ``/``."""
    path = file.replace("\\", "/")
    folder = base.replace("\\", "/").rstrip("/")
    if folder and path.startswith(f"{folder}/"):
        return path[len(folder) + 1 :]
    return path


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'analyze'?`` with a leading space; empty if no name is close."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=3, cutoff=0.6)
    if not close:
        return ""
    return f" Did you mean {' or '.join(repr(by_lower[name]) for name in close)}?"
