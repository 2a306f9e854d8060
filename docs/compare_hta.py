"""Compare the critical path of the first step with that of HolisticTraceAnalysis.

HTA runs in an environment of its own (``pip install HolisticTraceAnalysis 'pandas<2.3'``), whose
interpreter is given. Device work is matched by its correlation.

Run: ``python docs/compare_hta.py --hta /path/to/python TRACE ...``
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any, Final

import numpy as np

from profkit.engine.context import Context
from profkit.model.events import NO_ROW
from profkit.model.trace import Trace
from profkit.readers.open import load

_HTA: Final = """
import json, logging, sys, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
try:
    analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
    graph, found = analysis.critical_path_analysis(0, "ProfilerStep", 0)
    nodes = [graph.node_list[node] for node in graph.critical_path_nodes]
    table = analysis.t.get_trace(0)
    on_path = table.loc[sorted({node.ev_idx for node in nodes if node.ev_idx >= 0})]
    work = on_path[on_path.stream >= 0]
    result = {
        "path_us": sum(edge.weight for edge in graph.critical_path_edges_set),
        "span_us": max(node.ts for node in nodes) - min(node.ts for node in nodes),
        "work": {int(c): float(d) for c, d in zip(work.correlation, work.dur)},
    }
except Exception as error:
    result = {"error": f"{type(error).__name__}: {str(error)[:60]}"}
print("\\n" + json.dumps(result))
"""


def of_hta(python: Path, trace: Path) -> dict[str, Any]:
    """HTA's path: its length, what it spans, and its device work by correlation, in µs."""
    command = [str(python), "-c", _HTA, str(trace)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = run.stdout.splitlines()
    result: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": run.stderr[-60:]}
    return result


def of_profkit(trace: Path) -> dict[str, Any]:
    """The same of profkit's path."""
    loaded = load(trace)
    if not isinstance(loaded, Trace):
        raise SystemExit(f"{trace} is not a trace.")
    ctx = Context(trace=loaded)
    path, (starts, ends) = ctx.critical_path, ctx.replay.windows
    own = path.step == 0
    is_work = np.zeros(len(ctx.events), dtype=np.bool_)
    is_work[ctx.launches.work] = True
    on_device = own & (path.lane == NO_ROW) & (path.row != NO_ROW) & is_work[path.row]
    correlation = ctx.events.correlation.at(path.row[on_device])
    work: dict[int, float] = {}
    for key, ns in zip(correlation.tolist(), path.lengths_ns[on_device].tolist(), strict=True):
        work[key] = work.get(key, 0) + ns / 1000
    return {
        "path_us": path.lengths_ns[own].sum() / 1000,
        "span_us": (ends[0] - starts[0]) / 1000,
        "work": work,
    }


def main() -> None:
    """Print a row per trace."""
    parser = argparse.ArgumentParser(description="Compare critical paths with HTA's.")
    parser.add_argument("--hta", type=Path, required=True, help="interpreter that has HTA")
    parser.add_argument("traces", type=Path, nargs="+")
    options = parser.parse_args()
    print(
        "| trace | HTA: path of span, ms | its device work | profkit: path of span, ms "
        "| its device work | device work on both |"
    )
    print("|---|---|---|---|---|---|")
    for trace in options.traces:
        ours, theirs = of_profkit(trace), of_hta(options.hta, trace)
        name = trace.name.removesuffix(".json.gz")
        own = sum(ours["work"].values())
        mine = f"{ours['path_us'] / 1000:.2f} of {ours['span_us'] / 1000:.2f} | {own / 1000:.2f}"
        if "error" in theirs:
            print(f"| {name} | {theirs['error']} | - | {mine} | - |", flush=True)
            continue
        device = {int(key): us for key, us in theirs["work"].items()}
        both = sum(min(us, ours["work"].get(key, 0.0)) for key, us in device.items())
        print(
            f"| {name} | {theirs['path_us'] / 1000:.2f} of {theirs['span_us'] / 1000:.2f} | "
            f"{sum(device.values()) / 1000:.2f} | {mine} | {both / 1000:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
