"""Translation: sentence pairs, SentencePiece or BPE on both sides, BLEU."""

from t2t_flax.config import parse_valid_sets
from t2t_flax.data.hooks import symbols_of
from t2t_flax.data.sources import open_source
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.tasks.base import Task
from t2t_flax.tasks.translation.metrics import METRICS
from t2t_flax.tasks.translation.target_language import check_tokenizer


class Translation(Task):
    """The metrics are those that make sense for the target language."""

    metrics = METRICS

    def open_source(self, spec, *, key):
        data = self.config.data
        languages = dict(source_language=data.source_language, target_language=data.target_language)
        return open_source(spec, root=data.root, key=key, **languages)

    def train_tokenizers(self, source):
        return train_tokenizers(source, self.config.data, *symbols_of(self.config))

    def validate_config(self):
        super().validate_config()
        for name in parse_valid_sets(self.config.data.valid):  # not all metrics make sense for all languages
            Task.validate_config(self.of_set(name))

    def check_requirements(self):
        check_tokenizer(self.config.eval.sacrebleu_tokenizer, self.config.data.target_language)


TASK = Translation
