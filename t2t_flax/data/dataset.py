"""The data of a run: tokenizers and token stores, made once and found again by digest."""

import dataclasses
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from t2t_flax.config import Config, parse_test_sets
from t2t_flax.config.test_sets import FORM
from t2t_flax.data.batching.layouts import Layouts
from t2t_flax.data.preprocess import Policies, prepare_split
from t2t_flax.data.shared_preprocessing import Pod, prepare_together, survey_once
from t2t_flax.data.sources.base import Source
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.data.task import task_of
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.tokenizers.subword_nmt import read_codes, with_vocabulary
from t2t_flax.errors import UserError
from t2t_flax.filesystem import check_reachable

log = logging.getLogger("t2t_flax")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenizers, the training store, and the validation store if the config names validation data."""

    tokenizers: TokenizerPair
    train: TokenStore
    valid: TokenStore | None


def prepare_corpus(
    config: Config,
    workdir: str | epath.Path,
    progress: Callable[[str], Any] | None = None,
    pod: Pod | None = None,
) -> Corpus:
    """Tokenizers (trained, given, or those of `train.init_from`) and stores; what is there already is reused.

    `progress(name)` gives a callback `(pairs done, pairs in all or None)` for a split. Of several hosts (`pod`), all
    must call this: host 0 trains the tokenizer, each tokenises its share. Raises UserError for every mistake in the
    data: missing or ill-formed files, a vocabulary that the text cannot fill, no pair left.
    """
    workdir = epath.Path(workdir)
    if not config.data.train:
        raise UserError(
            "config.data.train is empty: give --config.data.train=SRC,TGT (files), tfds:NAME:SPLIT or toy:train."
        )
    check_reachable(_cache(config, workdir))
    lead, shared = pod is None or pod.index == 0, pod is not None and pod.count > 1
    if lead:
        tokenizers = _tokenizers(config, workdir, split_source(config, "train"))
    if shared:
        pod.barrier("the tokenizer is trained")
    if not lead:
        tokenizers = TokenizerPair.load(workdir / "tokenizer")
    train = split_store(config, workdir, "train", tokenizers, progress, pod)
    if lead:
        Layouts(train, config.data, config.seed.data)  # which leaves beside the store what every start needs
    if shared:
        pod.barrier("the updates are counted")
    valid = None
    if config.data.valid:
        valid = split_store(config, workdir, "valid", tokenizers, progress, pod)
    return Corpus(tokenizers, train, valid)


def sets_of(config: Config, split: str) -> list[str]:
    """What `split` stands for, as names that `split_source` takes: `valid`; `test` for all test sets; or the name of one of
    them. Raises UserError where there is none.
    """
    if split == "test" and (names := list(parse_test_sets(config.data.test))):
        return names
    _spec(config, split)
    return [split]


def split_source(config: Config, split: str) -> Source:
    """The source that config.data.train, .valid or .test names; of several test sets that of the name `split`. Raises
    UserError where there is none, or where there are several references to train on.
    """
    key, spec = _spec(config, split)
    try:
        source = task_of(config).read(spec, seed=config.seed.data, key=key)
    except UserError as error:
        if key.startswith("config.data.test") and ";" in spec:
            raise UserError(f"{error}. Several test sets need names: --config.data.test='{FORM}'.") from None
        if split != "test" and key.startswith("config.data.test"):
            hint = f"{split!r} is read as the name of a test set; a path that begins so is written ./{split}=..."
            raise UserError(f"{error}. ({hint})") from None
        raise
    if split == "train" and source.reference_count > 1:
        raise UserError(
            f"config.data.train = {spec!r} names {source.reference_count} targets: training text is SRC,TGT. Several "
            "references are for config.data.valid and config.data.test."
        )
    return source


def _spec(config: Config, split: str) -> tuple[str, str]:
    """(The config key, the source that it names) of a split or a named test set."""
    if split in ("train", "valid"):
        key, spec = f"config.data.{split}", getattr(config.data, split)
        if not spec:
            raise UserError(f"{key} is empty: give --{key}=SRC,TGT or another source.")
        return key, spec
    found = parse_test_sets(config.data.test)
    if split in found:
        return "config.data.test" + ("" if split == "test" else f" ({split})"), found[split]
    if split == "test" and found:
        raise UserError(f"config.data.test names the test sets {', '.join(found)}: ask for one of them.")
    if split == "test":
        raise UserError("config.data.test is empty: give --config.data.test=SRC,TGT or another source.")
    known = ", ".join(found) if set(found) - {"test"} else "no named test sets"
    raise UserError(f"there is no test set {split!r}: config.data.test has {known}.")


def check_sources(config: Config, splits: Sequence[str] = ("train", "valid", "test")) -> None:
    """Opens the sources of these splits and reads their first pair, so that a mistake is told before the training and not
    after it. Raises UserError for a source that is missing, cannot be read, is empty or not of its form.
    """
    for split in splits:
        for name in sets_of(config, split) if getattr(config.data, split).strip() else ():
            first_pair(split_source(config, name), f"config.data.{split}")


def first_pair(source: Source, key: str) -> tuple[str, str]:
    """Raises UserError where there is none, or the files cannot be read."""
    try:
        return next(source.pairs())
    except OSError as error:
        raise UserError(f"{key} = {source.spec!r} cannot be read: {error}.") from None


def split_store(
    config: Config, workdir: epath.Path, split: str, tokenizers: TokenizerPair, progress=None, pod: Pod | None = None
) -> TokenStore:
    """The token store of a split; of `valid` and test sets nothing is dropped or cut. Of several hosts all must call this."""
    workdir, source, train = epath.Path(workdir), split_source(config, split), split == "train"
    policies = dict(
        max_length=config.data.max_length if train else 2**31 - 1,
        on_too_long=config.data.on_too_long if train else "keep",
        empty_lines=config.data.empty_lines if train else "keep",
        source_eos=config.data.source_eos,
    )
    survey = survey_once(source, split, workdir, pod) if pod and pod.count > 1 else None
    fingerprint = survey.fingerprint if survey else source.fingerprint()
    kind = split if split in ("train", "valid") else "test"
    name = f"{kind}-{_digest(fingerprint, tokenizers.digest, Policies(**policies).as_stored())}"
    folder = epath.Path(_cache(config, workdir)) / name
    how = dict(processes=config.data.num_workers, progress=progress(split) if progress else None, **policies)
    if survey:
        return prepare_together(source, survey, tokenizers, folder, pod, **how)
    return prepare_split(source, tokenizers, folder, **how)


def _tokenizers(config: Config, workdir: epath.Path, source: Source) -> TokenizerPair:
    d, own = config.data, workdir / "tokenizer"
    settings = {
        name: getattr(d, name)
        for name in (
            "task tokenizer vocab_size joint_vocabulary tokenizer_sentences character_coverage byte_fallback normalization "
            "split_digits"
        ).split()
    }
    if config.train.init_from:
        # A run that goes on needs its own folder alone: the one that it started from may be gone.
        theirs = epath.Path(config.train.init_from) / "tokenizer"
        pair = TokenizerPair.load(own if TokenizerPair.is_complete(own) else theirs)
    elif d.tokenizer == "subword_nmt":
        codes = read_codes(epath.Path(d.root or ".") / d.tokenizer_model)
        folder = (
            epath.Path(_cache(config, workdir))
            / f"tokenizer-{_digest(source.fingerprint(), codes, d.joint_vocabulary)}"
        )
        if not TokenizerPair.is_complete(folder):
            _subword_pair(codes, source, d.joint_vocabulary).save(folder)
        pair = TokenizerPair.load(folder)
        _check_size(pair, config)
    elif d.tokenizer_model:
        given = epath.Path(d.root or ".") / d.tokenizer_model
        gone = TokenizerPair.is_complete(own) and not given.exists()
        pair = TokenizerPair.load(own if gone else given)
        _check_size(pair, config)
    else:
        folder = epath.Path(_cache(config, workdir)) / f"tokenizer-{_digest(source.fingerprint(), settings)}"
        if not TokenizerPair.is_complete(folder):
            log.info("training the tokenizer on %s", source.spec)
            pair = task_of(config).train_tokenizers(source)
            pair.save(folder)
        pair = TokenizerPair.load(folder)
    if not TokenizerPair.is_complete(own):
        pair.save(own)
    elif TokenizerPair.load(own).digest != pair.digest:
        raise UserError(
            f"{own} holds another tokenizer than this config and data make: the training text, or a tokenizer key, has "
            "changed since the run began. Use another --workdir."
        )
    return pair


def _subword_pair(codes: str, source: Source, joint: bool) -> TokenizerPair:
    if joint:
        both = with_vocabulary(codes, itertools.chain.from_iterable(source.pairs()))
        return TokenizerPair(both, both)
    return TokenizerPair(*(with_vocabulary(codes, (pair[side] for pair in source.pairs())) for side in (0, 1)))


def _check_size(pair: TokenizerPair, config: Config) -> None:
    for side in ("source", "target"):
        size = getattr(pair, side).vocab_size
        if size > config.data.vocab_size:
            raise UserError(
                f"config.data.vocab_size = {config.data.vocab_size} is smaller than the {size} pieces of the {side} "
                f"tokenizer in config.data.tokenizer_model = {config.data.tokenizer_model}: set it to {size}."
            )
    if config.data.joint_vocabulary and pair.source.digest != pair.target.digest:
        raise UserError(
            f"config.data.tokenizer_model = {config.data.tokenizer_model} holds two tokenizers: set "
            "config.data.joint_vocabulary = false and config.model.tie_embeddings = decoder."
        )


def _cache(config: Config, workdir: epath.Path) -> str:
    return config.data.cache or str(workdir / "data")


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
