"""Names from a recording as text that is safe and short to show, and nothing else.

A trace is written by others: its names may hold terminal escapes, line ends or text that runs from
right to left. :func:`visible` shows all of it harmlessly. :func:`short_kernel` leaves of a C++
kernel's name what tells it from others; the full name stays in the JSON report.
"""

import re
import unicodedata
from typing import Final

_OPEN: Final = "<([{"
_CLOSE: Final = ">)]}"
_ELLIPSIS: Final = "…"
_DROPPED_PREFIXES: Final = re.compile(
    r"^(?:void|static|__global__|\s)+(?=\S)|^(?:std::enable_if<.*?>::type )"
)
_NAMESPACE: Final = re.compile(r"(?:\(anonymous namespace\)|[A-Za-z_]\w*)::")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_LENGTH: Final = re.compile(r"[1-9]\d{0,2}")
_FUNCTOR: Final = re.compile(r"[Ff]unctor|Ops?$|_kernel_cuda$|_kernel_impl$")
_FUNCTOR_SUFFIX: Final = re.compile(r"_kernel_(?:cuda|impl)$")
_PASS_ON: Final = frozenset(
    {"BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "UnaryFunctor", "gpu_kernel_impl"}
)
"""Functors that only pass another one on."""
_TELLING_LENGTH: Final = 10
"""A kernel's name shorter than this (``Kernel``, ``kentry``) tells nothing on its own."""
_UNSAFE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS: Final = frozenset({"\u200d"})


def visible(text: str) -> str:
    r"""A text with nothing left in it that a terminal would obey.

    Control characters, terminal escapes, line ends, marks that turn the direction of writing and
    characters of no known meaning become ``\x1b``-like escapes. All else stays as it is.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _is_safe(char) else _escaped(char) for char in text)


def _is_safe(char: str) -> bool:
    return char in _JOINERS or unicodedata.category(char) not in _UNSAFE_CATEGORIES


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def short_kernel(name: str, width: int | None = None) -> str:
    """A kernel's name without return type, namespaces, and arguments.

    ``void at::native::vectorized_elementwise_kernel<4, …>(int, …)`` becomes
    ``vectorized_elementwise_kernel<…>``. For kernels that only pass a functor on, the functor is
    what tells them apart, so its name is kept where it fits:
    ``vectorized_elementwise_kernel<…CUDAFunctor_add…>``. Names that the recording has left
    mangled are read as far as their first template.

    Args:
        name: The name as recorded.
        width: Characters that the result may take; None for as many as it needs.
    """
    plain = _DROPPED_PREFIXES.sub("", name.strip())
    head, template = _split_mangled(name) or _split_template(plain)
    head = _NAMESPACE.sub("", head).strip() or name.strip()
    short = head
    if template is not None:
        functor = _functor(template, anything=len(head) < _TELLING_LENGTH)
        short = f"{head}<{_ELLIPSIS}{functor}{_ELLIPSIS}>" if functor else f"{head}<{_ELLIPSIS}>"
        if width is not None and len(head) >= _TELLING_LENGTH and len(short) > width:
            short = f"{head}<{_ELLIPSIS}>"
    return short if width is None else middle_cut(short, width)


def _split_template(text: str) -> tuple[str, str | None]:
    """A name up to its first top-level ``<`` or ``(``, and what stands in those ``<…>``."""
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
    """The last part of a mangled nested name and the names in its template, or None.

    Source: Itanium C++ ABI, section 5.1 "External Names (a.k.a. Mangling)".
    """
    if not name.startswith("_ZN"):
        return None
    place, last = len("_ZN"), ""
    while digits := _LENGTH.match(name, place):
        end = digits.end() + int(digits.group())
        last, place = name[digits.end() : end], end
    if not last:
        return None
    if name[place : place + 1] != "I":
        return last, None
    inner = []
    for digits in _LENGTH.finditer(name, place):
        word = name[digits.end() : digits.end() + int(digits.group())]
        if len(word) >= _TELLING_LENGTH and _WORD.fullmatch(word):
            inner.append(word)
    return last, " ".join(inner)


def _functor(template: str, *, anything: bool) -> str | None:
    """The first name within template arguments that says what the kernel works out.

    Args:
        template: The arguments.
        anything: Whether any long name will do, because the kernel's own tells nothing.
    """
    words: list[str] = [word for word in _WORD.findall(template) if word not in _PASS_ON]
    for word in words:
        if _FUNCTOR.search(word):
            return _FUNCTOR_SUFFIX.sub("", word)
    if anything:
        return next((word for word in words if len(word) >= _TELLING_LENGTH), None)
    return None


def middle_cut(text: str, width: int) -> str:
    """A text cut in its middle to at most ``width`` characters, both ends kept.

    Args:
        width: Characters that the result may take, at least 1.
    """
    if len(text) <= width:
        return text
    if width <= 1:
        return _ELLIPSIS[:width]
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}{_ELLIPSIS}{text[len(text) - tail :] if tail else ''}"


def tail_cut(path: str, width: int) -> str:
    """A path in at most ``width`` characters, its last folders kept: ``…/llama3/model.py:340``.

    Args:
        path: A path, perhaps with a line's number.
        width: Characters that the result may take, at least 1.
    """
    if len(path) <= width:
        return path
    parts = path.split("/")
    for place in range(1, len(parts)):
        cut = "/".join((_ELLIPSIS, *parts[place:]))
        if len(cut) <= width:
            return cut
    return middle_cut(parts[-1], width)


def short_path(file: str, base: str = "") -> str:
    """A path as one would type it: relative to ``base`` when it is inside, else as it is.

    Args:
        file: A path, of this or another operating system.
        base: An absolute folder, or empty.
    """
    path = file.replace("\\", "/")
    folder = base.replace("\\", "/").rstrip("/")
    if folder and path.startswith(f"{folder}/"):
        return path[len(folder) + 1 :]
    return path
