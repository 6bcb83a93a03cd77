"""Languages: several directions in one model, which is told the target language by a token before the source sentence."""

from t2t_flax.registry import DATA_HOOKS, START_FLAGS, SUMMARIES, add_group

add_group("languages", "t2t_flax.extensions.languages.keys", "Languages")
DATA_HOOKS.add("t2t_flax.extensions.languages.hook", "languages.directions")
SUMMARIES.add("directions", "t2t_flax.extensions.languages.table")
START_FLAGS["--target-language"] = "language to translate into, with a run of several directions"
