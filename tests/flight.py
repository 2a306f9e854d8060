"""Dumps of torch's FlightRecorder as torch and profkit write them."""

import json
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
NS = 1_735_689_600_000_000_000
S = 1_000_000_000
TORCH_FRAMES = [
    {"filename": "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
     "line": 3245, "name": "all_reduce"},
]  # fmt: skip


def build_entry(seq: int, kind: str = "all_reduce", **given: Any) -> Entry:  # noqa: ANN401
    """Build a completed call of NCCL; by keyword, keys that differ, and ``line`` of train.py."""
    line = given.pop("line", None)
    frames = [*TORCH_FRAMES, {"filename": "/home/me/train.py", "line": line, "name": "step"}]
    n = given.pop("n", 1000)

    return {
        "record_id": seq - 1,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "is_p2p": False,
        "profiling_name": f"nccl:{kind}",
        "time_created_ns": NS + seq * S,
        "input_sizes": [[n]],
        "input_dtypes": ["Float"],
        "output_sizes": [[n]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "timeout_ms": 600_000,
        "time_discovered_started_ns": NS,
        "time_discovered_completed_ns": NS,
        **({} if line is None else {"frames": frames}),
        **given,
    }


def waiting(seq: int, kind: str = "all_reduce", **given: Any) -> Entry:  # noqa: ANN401
    """Return a call that has started and not completed."""
    return build_entry(seq, kind, state="started", retired=False, **given)


def dump(entries: list[Entry], ranks: str = "[0, 1, 2]") -> Entry:
    """Return a dump of torch 2.13."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {
        "comm_lib_version": "2.27",
        "entries": entries,
        "nccl_comm_state": {},
        "pg_config": config,
        "pg_status": {},
        "version": "2.10",
    }


def own(data: Entry, rank: int, world_size: int = 3, **about: Any) -> Entry:  # noqa: ANN401
    """Return a dump as profkit writes it."""
    known_facts = {
        "rank": rank,
        "world_size": world_size,
        "host": "node",
        "pid": 17 + rank,
        "written_ns": NS + 100 * S,
        "is_end": True,
    }
    return {"flight_recorder_of": {**known_facts, **about}, "dumps": [data]}


def written(folder: Path, *dumps: object, name: str = "fr_rank{}.json") -> Path:
    """Return the dumps as files of ranks 0, 1, …"""
    folder.mkdir(exist_ok=True)
    for rank, data in enumerate(dumps):
        if data is not None:
            (folder / name.format(rank)).write_text(json.dumps(data))
    return folder
