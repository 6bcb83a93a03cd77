"""Extensions: folders that add commands, config keys and table rows to the core.

The core does not know them. To remove one, delete its folder, its tests, its page and its name in
EXTENSIONS. To add one, write a folder whose `__init__.py` calls the functions of
`t2t_flax.registry`, and add its name.
"""

import importlib

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

for _name in EXTENSIONS:
    importlib.import_module(f"{__name__}.{_name}")
