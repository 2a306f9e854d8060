"""profkit in TensorBoard: a tab of its own, and scalars beside the training curves.

``plugin`` is what TensorBoard loads; it finds recordings in the background (``scanner``), has them
analyzed in a process of their own (``analyst``, ``worker``), keeps what came of it (``store``), and
never does any of that while a page waits. ``export`` writes a report as TensorBoard's own events.
"""
