"""Which activities torch's profiler records: operators, and the work of devices in use."""

from typing import Any, Final

from profkit.errors import CaptureError

_DEVICES: Final = ("CUDA", "XPU", "MTIA", "HPU", "PrivateUse1")
"""Names of activities of devices; older versions of torch have fewer."""


def choose_activities(*, ops: bool, device: bool) -> list[Any]:
    """Return what a recording of operators, devices or both consists of on this machine.

    Raises:
        CaptureError: If nothing would be recorded.
    """
    from torch.profiler import ProfilerActivity, supported_activities

    activities: list[Any] = [ProfilerActivity.CPU] if ops else []
    if device:
        supported = supported_activities()
        for name in _DEVICES:
            activity = getattr(ProfilerActivity, name, None)
            if activity in supported and _is_usable(name.lower()):
                activities.append(activity)

    if not activities:
        raise CaptureError(
            "ops=False records device work only, and torch finds no device.",
            "Record operators too, or run: profkit doctor",
        )
    return activities


def toggled_activities() -> list[Any]:
    """Return all kinds of activities that torch can mute."""
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU, ProfilerActivity.CUDA, ProfilerActivity.XPU]


def _is_usable(device: str) -> bool:
    import torch

    module = getattr(torch, device, None)
    return module is None or bool(module.is_available())
