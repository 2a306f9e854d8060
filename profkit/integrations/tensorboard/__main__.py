"""``python -m profkit.integrations.tensorboard`` is ``tensorboard`` without torch-tb-profiler.

That plugin starts one process for each trace of a log directory at once, whatever their number.
TensorBoard has no option to leave a plugin out.

Source: ``run_main`` in ``tensorboard/main.py``, ``get_dynamic_plugins`` in ``default.py``;
``RunLoader.load`` in ``profiler/loader.py`` of torch-tb-profiler 0.4.3.
"""

import sys
from importlib.metadata import entry_points
from typing import Any

from absl import app
from tensorboard import default, main_lib, program
from tensorboard.plugins import base_plugin


def load_plugins() -> list[Any]:
    """Load all plugins of TensorBoard but torch-tb-profiler, which is not imported."""
    installed = entry_points(group="tensorboard_plugins")
    wanted = [plugin for plugin in installed if not plugin.module.startswith("torch_tb_profiler.")]
    return [*default.get_static_plugins(), *(plugin.load() for plugin in wanted)]


def main() -> None:
    """Run TensorBoard with the options of the command line."""
    main_lib.global_init()
    server = program.TensorBoard(plugins=load_plugins())
    try:
        app.run(server.main, flags_parser=server.configure)
    except base_plugin.FlagsError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
