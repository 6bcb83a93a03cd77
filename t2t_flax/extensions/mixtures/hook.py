"""Mixtures in the data of a run."""

from t2t_flax.config import Config
from t2t_flax.data.hooks import DataHook
from t2t_flax.extensions.mixtures import (
    parse_batch_tokens,
    parse_limits,
    parse_samples,
    parse_shares,
    parse_tags,
)
from t2t_flax.extensions.mixtures.selections import FirstPairs, RandomPairs
from t2t_flax.extensions.mixtures.shares import mixed_stream, mixtures
from t2t_flax.extensions.mixtures.tokenizer_text import MixedText, Shares
from t2t_flax.extensions.shared.tagged_source import TaggedSource


class MixturesHook(DataHook):
    def __init__(self, config: Config):
        self._config = config
        self._tags, self._limits, self._samples = (
            parse_tags(config),
            parse_limits(config),
            parse_samples(config),
        )

    def transform(self, split, name, source):
        if split == "tokenizer":
            return self._tokenizer_text(source)
        if split != "train":
            return source
        if limit := self._limits.get(name):
            source = FirstPairs(source, limit)
        if size := self._samples.get(name):
            source = RandomPairs(source, name, size, self._config.group("mixtures").sample_seed)
        return TaggedSource(source, self._tags[name]) if name in self._tags else source

    def symbols(self):
        return dict.fromkeys(self._tags.values(), "mixtures.tags")

    def _tokenizer_text(self, text):
        """Give each source its share of the first phase, since later ones may change.

        A source that is not in it counts as the mean of the others.
        """
        names, (_, weights) = self._config.data.train_sources, parse_shares(self._config)[0]
        if weights is None:
            temperature = self._config.group("mixtures").temperature
            return (
                MixedText(text, Shares((1.0,) * len(names), 1 / temperature))
                if temperature
                else text
            )
        mean = sum(weights.values()) / len(weights)
        return MixedText(text, Shares(tuple(weights.get(name, mean) for name in names), 0.0))

    def stream(self, make, tokenizers):
        return mixed_stream(make, self._config)

    def trained_tokens(self):
        steps, sizes = (
            self._config.train.steps,
            {0: self._config.data.batch_tokens} | parse_batch_tokens(self._config),
        )
        ends = [*sizes, steps][1:]
        return sum(
            tokens * (min(end, steps) - min(start, steps))
            for (start, tokens), end in zip(sizes.items(), ends, strict=True)
        )

    def describe(self, store):
        if store:
            phases = mixtures(store, self._config, self._config.seed.data) or []
            return [f"mixture from update {start:,}: {one.describe()}" for start, one in phases]
        lines = [
            f"only the first {count:,} pairs of {name}" for name, count in self._limits.items()
        ]
        lines += [
            f"a random sample of {count:,} pairs of {name}" for name, count in self._samples.items()
        ]
        lines += [
            f"{tag} before the source sentences of {name}" for name, tag in self._tags.items()
        ]
        temperature = self._config.group("mixtures").temperature
        rule = f"pairs^(1/{temperature:g})" if temperature else "every pair equally often"
        for start, weights in parse_shares(self._config):
            shares = f"by size ({rule})"
            if weights is not None:
                shares = ", ".join(
                    f"{name} {weight / sum(weights.values()):.1%}"
                    for name, weight in weights.items()
                )
            lines.append(f"shares from update {start:,}: {shares}")
        sizes = parse_batch_tokens(self._config).items()
        return lines + [
            f"{tokens:,} tokens per update from update {start:,}" for start, tokens in sizes
        ]
