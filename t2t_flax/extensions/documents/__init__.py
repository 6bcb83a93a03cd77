"""Documents: paragraphs are translated sentence by sentence, and what stands between sentences stays."""

from t2t_flax.registry import ANALYSES, MODEL_FLAGS, Flag

ANALYSES.add("sentences", "t2t_flax.extensions.documents.sentences:sentences_of")
MODEL_FLAGS.add(
    "--split-sentences",
    Flag(
        "t2t_flax.extensions.documents.model:SentenceModel",
        "translate each sentence of a line on its own, and join them with what stood between them",
    ),
)
