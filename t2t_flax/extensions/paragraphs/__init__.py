"""Paragraphs: `--split-sentences` translates each sentence of a line on its own."""

from t2t_flax.registry import FLAGS, OUTPUTS, Flag

FLAGS.add(
    "--split-sentences",
    Flag(
        OUTPUTS,
        "translate each sentence of a line on its own, and join them with what stood between them",
        module="t2t_flax.extensions.paragraphs.model:SplitSentences",
    ),
)
