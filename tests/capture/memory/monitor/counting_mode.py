"""A dispatch mode of the program, which profkit must leave alone."""

from torch.utils._python_dispatch import TorchDispatchMode


class Counting(TorchDispatchMode):
    """A mode of the program."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self.n += 1
        return func(*args, **(kwargs or {}))
