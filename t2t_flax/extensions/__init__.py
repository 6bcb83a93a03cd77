"""Extensions: folders that add commands, config keys and table rows to the core, which does not know them.

To remove one, delete its folder, its tests, its page and its name in EXTENSIONS; to add one, write a folder whose `__init__.py`
calls the functions of `t2t_flax.registry`, and add its name.
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
    "resilience",
    "mup",  # before finetuning, whose parameters it refuses
    "finetuning",
    "layer_types",
    "trackers",
    "inspection",
    "storage",
    "bulk_translation",
    "augmentation",
    "documents",
    "mixtures",
    "languages",
    "averaging",
    "optimizers",
    "learned_metrics",
    "layout_processes",
    "alignments",
    "ensembles",
    "constraints",  # after ensembles: a coverage penalty is one of all models together
    "mbr",
    "scaling",
    "selftest",
    "speculative",
    "algoperf",
    "decoder_only",
    "reproducible",
)

KNOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "sweeps": {"commands": ("sweep", "train_together", "compare")},
    "planning": {"groups": ("planning",), "commands": ("plan",)},
    "serving": {"commands": ("serve",)},
    "interop": {
        "commands": ("export", "import"),
        "groups": ("ctranslate2",),
        "decode.engine": ("ctranslate2",),
        "tokenizer files": ("SentencePiece model and vocabulary",),
        "workdirs": ("pretrained:*", "model.safetensors"),
    },
    "corpora": {
        "groups": ("filters",),
        "commands": ("list_dropped",),
        "sources": ("tsv", "jsonl", "parquet", "hf", "tfds", "mtdata"),
        "patterns": ("*",),
    },
    "parsing": {
        "groups": ("parsing",),
        "data.task": ("parsing",),
        "presets": ("aiayn_parsing",),
        "tokenizer files": (
            "symbols split at spaces",
            "SentencePiece model with numbers of words",
            "symbols of trees with numbers of words",
        ),
    },
    "kernels": {"model.attention_kernel": ("cudnn", "splash")},
    "resilience": {"groups": ("resilience",)},
    "finetuning": {"groups": ("finetuning",)},
    "trackers": {"groups": ("trackers",)},
    "recipes": {
        "groups": ("recipes",),
        "presets": ("t2t_v*", "fairseq_*", "wu2021_tiny", "flax_wmt", "mlperf_big", "bert_*", "table3_*"),
    },
    "layer_types": {
        "groups": ("layer_types",),
        "model.mixer": ("local_attention", "lstm", "gru", "conv", "dilated_conv"),
        "model.attention_score": ("additive",),
        "model.position": ("rotary", "alibi"),
        "model.feed_forward": ("gated",),
        "model.norm_type": ("rmsnorm",),
    },
    "augmentation": {
        "groups": ("subwords", "noise"),
        "data.tokenizer": ("subword_nmt",),
        "tokenizer files": ("subword-nmt codes and vocabulary",),
    },
    "mixtures": {"groups": ("mixtures",)},
    "languages": {"groups": ("languages",), "flags": ("--target-language",)},
    "optimizers": {
        "groups": ("optimizers",),
        "optimizer.name": ("adafactor", "lion", "muon", "nadamw", "schedule_free_adamw"),
        "optimizer.schedule": ("cosine", "linear", "wsd"),
    },
    "learned_metrics": {
        "groups": ("learned_metrics",),
        "metrics": ("comet", "kiwi", "metricx"),
        "flags": ("--metric",),
    },
    "inspection": {"groups": ("inspection",), "commands": ("attend", "inspect")},
    "alignments": {"groups": ("alignments",), "commands": ("align",), "flags": ("--alignments", "--tags")},
    "constraints": {
        "groups": ("constraints",),
        "decode.strategy": ("constrained_beam", "diverse_beam"),
        "metrics": ("term_use",),
    },
    "storage": {"paths": ("*://*",)},
    "ensembles": {"groups": ("ensembles",), "repeated flags": ("--workdir",)},
    "mbr": {"commands": ("mbr", "rerank"), "groups": ("rerank",)},
    "speculative": {"groups": ("speculative",), "decode.strategy": ("speculative",)},
    "decoder_only": {"groups": ("decoder_only",), "model.architecture": ("decoder_only",)},
    "averaging": {"commands": ("average",)},
    "bulk_translation": {"commands": ("translate_file", "score")},
    "scaling": {"commands": ("fit_scaling", "branch")},
    "layout_processes": {},
    "documents": {"groups": ("documents",), "flags": ("--split-sentences",)},
    "selftest": {"commands": ("selftest",), "groups": ("selftest",)},
    "algoperf": {"groups": ("algoperf",), "commands": ("time_to_target",), "presets": ("algoperf_*",)},
    "mup": {"commands": ("check_sizes",), "groups": ("mup",)},
    "reproducible": {"groups": ("reproducible",)},
}
"""What the project's extensions add: commands, groups of keys, sources, paths, workdirs, and values of config keys. For the
messages of a checkout that lacks one.
"""

for _name in EXTENSIONS:
    importlib.import_module(f"{__name__}.{_name}")
