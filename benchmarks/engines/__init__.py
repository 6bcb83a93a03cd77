"""Child processes of the speed benchmarks: `python -m benchmarks.engines.X TASK.json`.

Each engine has a module. It runs in its own environment, reads its task from a JSON file and prints
its result as the last line. Modules of peers import only their own packages, NumPy and
`benchmarks.models`.
"""
