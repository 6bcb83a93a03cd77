"""Word alignments by a head of the decoder's attention: beside translations, of given pairs, and to carry tags over."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import TRANSLATIONS, key
from t2t_flax.data.hooks import draws_pairs
from t2t_flax.errors import UserError
from t2t_flax.registry import ANALYSES, COMMANDS, DATA_HOOKS, FLAGS, GROUPS, LOSSES, OUTPUTS, Command, Flag


@dataclass(frozen=True)
class Alignments:
    layer: int = key(
        0,
        "decoder layer whose attention to the source aligns words, from 1; 0 = the layer, head and row that align pairs of "
        "data.valid best, as `align --choose` finds them",
        low=0,
        mutable=True,
        changes=TRANSLATIONS,
    )
    head: int = key(
        0, "head of alignments.layer, from 1; 0 = the mean of its heads", low=0, mutable=True, changes=TRANSLATIONS
    )
    row: str = key(
        "predicts",
        "whose attention aligns a word: that of the position that predicts it, or of the next one, which reads it",
        choices=("predicts", "reads"),
        mutable=True,
        changes=TRANSLATIONS,
    )

    guided: str = key(
        "",
        "file of word alignments in Pharaoh's form, a line for each pair of data.train (of several sources one file for each, "
        "with commas), to which alignments.head of alignments.layer is trained; words are what spaces divide in the text",
    )
    weight: float = key(0.1, "of the cross-entropy of guided alignments, per linked target token", low=0.0)

    @classmethod
    def of(cls, config: Config) -> "Alignments":
        """The group of a config."""
        return config.group("alignments")

    def check(self, config: Config) -> None:
        """Raises UserError for a layer or a head that the model does not have."""
        layers, heads = config.model.num_decoder_layers, config.model.num_heads
        for name, value, most in (("layer", self.layer, layers), ("head", self.head, heads)):
            if value > most:
                raise UserError(f"config.alignments.{name} = {value}: the decoder has {most} {name}s.")
        if self.head and not self.layer:
            raise UserError(f"config.alignments.head = {self.head} needs config.alignments.layer.")
        if self.guided and not self.layer:
            raise UserError(
                "config.alignments.guided needs config.alignments.layer, and perhaps .head: what is trained."
            )
        if self.guided and self.row != "predicts":
            raise UserError(
                "config.alignments.guided trains the position that predicts: config.alignments.row = predicts."
            )
        if self.guided and "rerank" in GROUPS and config.value("rerank.right_to_left"):
            raise UserError(
                "config.alignments.guided cannot be used with config.rerank.right_to_left: its links are of target words in "
                "their order."
            )
        if self.guided and draws_pairs(config):
            raise UserError(
                "config.alignments.guided: training pairs are changed or segmented anew in each pass, which the alignments do "
                "not fit. Leave out the keys that do it, such as those of the groups noise and subwords."
            )

    def check_change(self, stored: Config, given: Config, step: int) -> None:
        """Raises UserError for another head in a run that trains one."""
        before, now = ((group.layer, group.head) for group in map(Alignments.of, (stored, given)))
        if self.guided and before != now:
            raise UserError(
                "config.alignments.layer and .head cannot change while config.alignments.guided trains that head: "
                f"{before} in the workdir, {now} now."
            )


GROUPS.add("alignments", Alignments)
DATA_HOOKS.add("t2t_flax.extensions.alignments.guided", "alignments.guided")
LOSSES.add("t2t_flax.extensions.alignments.guided_loss", "alignments.guided")
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
        "print word alignments after ` ||| `: hard (0-0 1-1), soft (probabilities), or a probability from which words are linked",
        "FORM",
        module="t2t_flax.extensions.alignments.outputs:WithAlignments",
    ),
)
FLAGS.add(
    "--tags",
    Flag(
        OUTPUTS,
        "carry over what must not change, by word alignments: html (elements, placeholders and URLs) or text (placeholders and "
        "URLs)",
        "FORM",
        module="t2t_flax.extensions.alignments.outputs:WithTags",
    ),
)
ANALYSES.add("html", "t2t_flax.extensions.alignments.html_document:HtmlDocument")
