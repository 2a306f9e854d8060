"""profkit in TensorBoard: a tab with reports, and scalars next to the training curves.

TensorBoard loads ``plugin``. It finds recordings in the background (``scanner``), analyzes them in
separate processes (``analysis_queue``, ``worker``) and caches the results (``cache``), so that no
request waits for an analysis. ``__main__`` starts TensorBoard without torch-tb-profiler.
``export`` writes a report as TensorBoard events.
"""
