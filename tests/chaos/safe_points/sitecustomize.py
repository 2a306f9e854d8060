"""Python imports this at its start, if the folder is on PYTHONPATH: see ``safe_point_checks``."""

import os

if os.environ.get("CHAOS_VIOLATIONS"):
    import safe_point_checks  # type: ignore[import-not-found]  # it lies beside this file

    safe_point_checks.check_profiler(os.environ["CHAOS_VIOLATIONS"])
