"""Extensions: folders that add commands, config keys and table rows to the core, which does not know them.

To remove one, delete its folder, its tests, its page and its name in EXTENSIONS; to add one, write a folder whose `__init__.py`
calls the functions of `t2t_flax.registry`, and add its name.
"""

import importlib

EXTENSIONS = ("sweeps", "planning", "serving", "interop")

KNOWN = {
    "sweeps": {"commands": ("sweep", "train_together"), "groups": ()},
    "planning": {"commands": ("plan",), "groups": ()},
    "serving": {"commands": ("serve",), "groups": ()},
    "interop": {"commands": ("export", "import"), "groups": ("ctranslate2",)},
}
"""What the project's extensions add, for the messages of a checkout that lacks one."""

for _name in EXTENSIONS:
    importlib.import_module(f"{__name__}.{_name}")
