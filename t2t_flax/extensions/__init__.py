"""Extensions: folders that add commands, config keys and table rows to the core.

The core does not know them. To remove one, delete its folder, its tests, its page and its name in
EXTENSIONS. To add one, write a folder whose `__init__.py` calls the functions of
`t2t_flax.registry`, and add its name. Modules of your own outside the package, which do the same,
are named in the environment: `export T2T_EXTENSIONS=mine,other`.
"""

import importlib
import os

from t2t_flax.errors import UserError

OWN = "T2T_EXTENSIONS"

EXTENSIONS = (
    "sweeps",
    "planning",
    "serving",
    "interop",
    "corpora",
    "parsing",
    "kernels",
    "recipes",
    "mup",  # before finetuning: mup rejects its parameters
    "finetuning",
    "layer_types",
    "trackers",
    "inspection",
    "storage",
    "bulk_translation",
    "subwords",
    "paragraphs",
    "mixtures",
    "languages",
    "averaging",
    "optimizers",
    "learned_metrics",
    "alignments",
    "ensembles",
    "constraints",
    "reranking",
    "scaling",
    "selftest",
)


def _import_own(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        module = None
    if module is None or module.__file__ is None:  # a folder without __init__.py imports as well
        raise UserError(
            f"{OWN} names the module {name!r}, which Python does not find: start the command in its"
            " folder, or add the folder to PYTHONPATH."
        )


for _name in EXTENSIONS:
    importlib.import_module(f"{__name__}.{_name}")
for _name in filter(None, map(str.strip, os.environ.get(OWN, "").split(","))):
    _import_own(_name)
