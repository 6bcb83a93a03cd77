"""Layout processes: windows of updates are laid out ahead, in worker processes, where that takes long."""

from t2t_flax.registry import AHEAD

AHEAD.add("layout_processes", "t2t_flax.extensions.layout_processes.ahead:AheadInProcesses")
