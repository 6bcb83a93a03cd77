"""Word alignments by an attention head of the decoder.

They are printed beside translations or for given pairs, and carry tags over.
"""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import PRINTED, is_set, key
from t2t_flax.errors import UserError
from t2t_flax.registry import COMMANDS, FLAGS, GROUPS, OUTPUTS, Command, Flag, Group


@dataclass(frozen=True)
class Alignments(Group):
    layer: int = key(
        0,
        "decoder layer whose attention to the source aligns words, from 1; 0 = the layer, head and"
        " row that align pairs of data.valid best, as `align --choose` finds them",
        low=0,
        mutable=True,
        changes=PRINTED,
    )
    head: int = key(
        0,
        "head of alignments.layer, from 1; 0 = the mean of its heads",
        low=0,
        mutable=True,
        changes=PRINTED,
        when=is_set("alignments.layer"),
    )
    row: str = key(
        "predicts",
        "whose attention aligns a word: that of the position that predicts it, or of the next one,"
        " which reads it",
        choices=("predicts", "reads"),
        mutable=True,
        changes=PRINTED,
        when=is_set("alignments.layer"),
    )

    @classmethod
    def of(cls, config: Config) -> "Alignments":
        return config.group("alignments")

    def check(self, config: Config) -> None:
        """Raise UserError for a layer or a head that the model does not have."""
        layers, heads = config.model.num_decoder_layers, config.model.num_heads
        for name, value, most in (("layer", self.layer, layers), ("head", self.head, heads)):
            if value > most:
                raise UserError(
                    f"config.alignments.{name} = {value}: the decoder has {most} {name}s."
                )


GROUPS.add("alignments", Alignments)
COMMANDS.add(
    "align",
    Command(
        "t2t_flax.extensions.alignments.align",
        "word alignments of given pairs, and their error rate against a gold file",
    ),
)
FLAGS.add(
    "--alignments",
    Flag(
        OUTPUTS,
        "print word alignments after ` ||| `: hard (0-0 1-1), soft (probabilities), or a"
        " probability from which words are linked",
        "FORM",
        module="t2t_flax.extensions.alignments.outputs:WithAlignments",
    ),
)
FLAGS.add(
    "--tags",
    Flag(
        OUTPUTS,
        "carry over what must not change, by word alignments: html (elements, placeholders and"
        " URLs) or text (placeholders and URLs)",
        "FORM",
        module="t2t_flax.extensions.alignments.outputs:WithTags",
    ),
)
