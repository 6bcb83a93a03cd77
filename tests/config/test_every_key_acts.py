"""Config keys have an effect.

They change the train step, the search, the prepared data or the batches. Where another key takes
the effect away, another value than the default is refused.
"""

import functools
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, random_pairs, small_config, write_store
from helpers.other_values import other_value
from helpers.refusals import assert_names, refused

from t2t_flax import process_setup as process
from t2t_flax.config import Config, as_json, default_config, override, resolve
from t2t_flax.config.overrides import _warn
from t2t_flax.config.schema import CORE_GROUPS, conditions, fields, unmet
from t2t_flax.data import dataset as corpus_module
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.splits import split_source
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.registry import SEARCHES
from t2t_flax.tasks import task_of
from t2t_flax.training.losses import loss_sums
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import abstract_state, make_model
from t2t_flax.training.train_step import jit_train_step

# Keys that change the program of the train step: (base, other value, further keys of the base).
PROGRAM = {
    "model.num_encoder_layers": (1, 2, {}),
    "model.num_decoder_layers": (1, 2, {}),
    "model.d_model": (8, 16, {}),
    "model.d_ff": (16, 32, {}),
    "model.num_heads": (2, 4, {}),
    "model.num_kv_heads": (0, 1, {}),
    "model.d_k": (0, 3, {}),
    "model.d_v": (0, 3, {}),
    "model.dropout": (0.1, 0.2, {}),
    "model.dropout_attention": (0.0, 0.2, {}),
    "model.dropout_ffn": (0.0, 0.2, {}),
    "model.norm_placement": ("post", "pre", {}),
    "model.norm_eps": (1e-6, 1e-3, {}),
    "model.position": ("sinusoid_interleaved", "learned", {}),
    "model.max_positions": (32, 64, {"model.position": "learned"}),
    "model.position_offset": (0, 2, {}),
    "model.final_norm": ("auto", "both", {}),
    "model.activation": ("relu", "gelu", {}),
    "model.attention_score": ("scaled_dot", "dot", {}),
    "model.attention_bias": (False, True, {}),
    "model.embed_scale": ("sqrt_d", "none", {}),
    "model.logit_scale": ("none", "rsqrt_d", {}),
    "model.output_bias": (False, True, {}),
    "model.decoder_start_token": ("zeros", "eos", {}),
    "model.tie_embeddings": ("all", "decoder", {}),
    "model.pad_vocab_to_multiple": (8, 16, {}),
    "optimizer.name": ("adam", "lion", {}),
    "optimizer.schedule": ("noam", "inverse_sqrt", {}),
    "optimizer.lr_scale": (1.0, 2.0, {}),
    "optimizer.peak_lr": (1e-3, 2e-3, {"optimizer.schedule": "inverse_sqrt"}),
    "optimizer.warmup_steps": (10, 20, {}),
    "optimizer.warmup_init": (0.0, 1e-4, {"optimizer.schedule": "inverse_sqrt"}),
    "optimizers.decay_steps": (50, 60, {"optimizer.schedule": "cosine"}),
    "optimizers.min_lr": (
        0.0,
        1e-5,
        {"optimizer.schedule": "linear", "optimizers.decay_steps": 50},
    ),
    "optimizers.cooldown_steps": (
        20,
        30,
        {"optimizer.schedule": "wsd", "optimizers.decay_steps": 50},
    ),
    "optimizers.momentum": (0.95, 0.9, {"optimizer.name": "muon"}),
    "optimizer.b1": (0.9, 0.8, {}),
    "optimizer.b2": (0.98, 0.9, {}),
    "optimizer.eps": (1e-9, 1e-8, {}),
    "optimizer.schedule_first_step": (1, 0, {}),
    "optimizer.max_grad_norm": (0.0, 1.0, {}),
    "optimizer.weight_decay": (0.0, 0.1, {}),
    "optimizer.ema_decay": (0.0, 0.9, {}),
    "loss.label_smoothing": (0.1, 0.2, {}),
    "loss.label_smoothing_over": ("all", "non_target", {}),
    "loss.logits_chunk_size": (16, 32, {}),
    "train.precision": ("float32", "bfloat16", {}),
    "train.remat": ("none", "dots", {}),
    "mup.base_width": (0, 4, {"optimizer.schedule": "inverse_sqrt"}),
    "mup.base_head_width": (0, 1, {"optimizer.schedule": "inverse_sqrt", "mup.base_width": 4}),
    "mup.base_layers": (
        0,
        2,
        {"optimizer.schedule": "inverse_sqrt", "mup.base_width": 4, "model.norm_placement": "pre"},
    ),
    "finetuning.freeze": ("", "encoder_*", {}),
    "finetuning.lora_rank": (0, 2, {}),
    "finetuning.lora_alpha": (16.0, 8.0, {"finetuning.lora_rank": 2}),
    "finetuning.lora_modules": ("*/query */value", "*/query", {"finetuning.lora_rank": 2}),
    "seed.dropout": (0, 1, {}),
}

# Keys that change the vocabulary or the token store of the training data.
PREPARED = {
    "data.train": ("toy:train:150", "toy:train:160", {}),
    "data.source_language": ("en", "de", {"data.target_language": "?"}),
    "data.target_language": ("de", "en", {"data.source_language": "?"}),
    "data.tokenizer": ("bpe", "unigram", {}),
    "data.vocab_size": (300, 320, {}),
    "data.joint_vocabulary": (True, False, {"model.tie_embeddings": "decoder"}),
    "data.tokenizer_sentences": (1000, 100, {"data.vocab_size": 180}),
    "data.character_coverage": (1.0, 0.98, {}),
    "data.byte_fallback": (False, True, {"data.vocab_size": 500, "data.train": "toy:train:900"}),
    "data.normalization": ("nmt_nfkc", "identity", {}),
    "data.split_digits": (False, True, {}),
    "data.max_length": (64, 24, {}),
    "data.source_eos": (True, False, {}),
    "data.on_too_long": ("drop", "truncate", {"data.max_length": 24}),
    "mixtures.tags": ("", "train=<bt>", {}),
    "mixtures.limits": ("", "train=100", {}),
    "mixtures.samples": ("", "train=100", {}),
    "mixtures.sample_seed": (0, 1, {"mixtures.samples": "train=100"}),
    "filters.length_ratio": (0.0, 1.3, {}),
    "filters.copies": (False, True, {}),
    "filters.held_out": ("", "either", {"data.valid": "toy:valid:20"}),
}


def changed(config: Config, keys: dict) -> Config:
    return config.with_values(keys)


def abstract_batch(*shape: int) -> dict:
    sides, parts = ("source", "target"), ("", "_segments", "_positions")
    return {side + part: jax.ShapeDtypeStruct(shape, np.int32) for side in sides for part in parts}


@functools.cache
def loss_program(config: Config) -> str:
    """The loss as a jaxpr, without its gradient, which is four times as long."""
    model = make_model(config, 37, 37)
    params = abstract_state(
        config,
        model,
        make_optimizer(config, parametrization_of(config)),
        parametrization_of(config),
        devices_mesh(),
    )[0].params

    def loss(params, batch):
        return loss_sums(
            config, model, params, batch, Noise(noise_key(0, 0), np.arange(4, dtype=np.uint32))
        )

    return str(jax.make_jaxpr(loss)(params, abstract_batch(4, 24)))


@functools.cache
def update_program(config: Config) -> str:
    """The update of the optimizer as a jaxpr."""
    tx = make_optimizer(config, parametrization_of(config))
    state, _ = abstract_state(
        config, make_model(config, 37, 37), tx, parametrization_of(config), devices_mesh()
    )
    return str(jax.make_jaxpr(tx.update)(state.params, state.opt_state, state.params))


@functools.cache
def program(config: Config) -> str:
    """The train step as a jaxpr, which shows differences without compiling."""
    mesh = devices_mesh()
    model, tx = make_model(config, 37, 37), make_optimizer(config, parametrization_of(config))
    state, shardings = abstract_state(config, model, tx, parametrization_of(config), mesh)
    with mesh_lib.use(mesh):
        return str(
            jit_train_step(config, model, tx, parametrization_of(config), mesh, shardings)
            .trace(state, abstract_batch(1, 4, 24))
            .jaxpr
        )


SMALL = dict(num_encoder_layers=1, num_decoder_layers=1, d_model=8, d_ff=16, num_heads=2)


@pytest.mark.parametrize("key", PROGRAM)
def test_key_changes_the_train_step(key):
    base, new_value, further = PROGRAM[key]
    config = changed(
        small_config(model=SMALL, train=dict(precision="float32")), further | {key: base}
    )
    show = program
    if key.startswith(("model.", "loss.")):
        show = loss_program
    elif key.startswith(("optimizer.", "optimizers.")) and key != "optimizer.ema_decay":
        show = update_program
    assert show(config) != show(changed(config, {key: new_value}))


def test_equal_configs_have_equal_train_steps():
    config = small_config(model=SMALL, train=dict(precision="float32"))
    for show in (program, loss_program, update_program):
        assert show.__wrapped__(config) == show.__wrapped__(config)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The digests of a config's prepared data, prepared once for all tests."""

    @functools.cache
    def digests(config: Config) -> tuple[str, str, int]:
        corpus = prepare_corpus(task_of(config), tmp_path_factory.mktemp("prepared"))
        return corpus.tokenizers.digest, corpus.train.digest, corpus.train.num_pairs

    return digests


@pytest.mark.parametrize("key", PREPARED)
def test_key_changes_the_prepared_data(key, prepared):
    base, new_value, further = PREPARED[key]
    config = small_config(
        data=dict(
            train="toy:train:150",
            vocab_size=300,
            byte_fallback=False,
            max_length=64,
            pack_length=64,
            batch_tokens=256,
        )
    )
    swap = "?" in further.values()
    config = changed(config, {k: v for k, v in further.items() if v != "?"} | {key: base})
    second = changed(config, {key: new_value} | {k: base for k, v in further.items() if v == "?"})
    assert prepared(config) != prepared(second)
    if swap:
        pairs = [next(iter(split_source(task_of(c), "train").pairs())) for c in (config, second)]
        assert pairs[0] == pairs[1][::-1]


BATCHES = {
    "data.batch_tokens": 200,
    "data.batching": "buckets",
    "data.pack_length": 48,
    "data.microbatch_tokens": 48,
}


@pytest.mark.parametrize("key", BATCHES)
def test_key_changes_the_shapes(key, tmp_path):
    store = write_store(tmp_path / "store", random_pairs(200, longest=22))
    config = small_config()
    before, after = (
        Batches(store, c.data, seed=0).shapes
        for c in (config, changed(config, {key: BATCHES[key]}))
    )
    assert before != after


def test_seed_data_changes_the_order(tmp_path):
    store = write_store(tmp_path / "store", random_pairs(200, longest=22))
    first, second = (Batches(store, small_config().data, seed=s).batch(0).pairs for s in (0, 1))
    assert not np.array_equal(first, second)


def test_seed_init_changes_the_parameters():
    tables = [
        np.asarray(
            model_and_state(small_config(model=SMALL, seed=dict(init=s)))[2].params[
                "shared_embedding"
            ]["table"]
        )
        for s in (0, 0, 1)
    ]
    np.testing.assert_array_equal(tables[0], tables[1])
    assert not np.allclose(tables[0], tables[2])


def test_data_root_cache_and_num_workers(tmp_path, monkeypatch):
    """data.root: where relative paths start; data.cache: where stores go.

    data.num_workers: processes that tokenise.
    """
    root = tmp_path / "texts"
    root.mkdir()
    for name in ("a.en", "a.de"):
        (root / name).write_text("".join(f"line number {i}\n" for i in range(200)))
    data = dict(train="a.en,a.de", vocab_size=30, byte_fallback=False)
    with refused("config.data.train", "a.en"):
        prepare_corpus(task_of(small_config(data=data)), tmp_path / "w")
    num_workers = []
    real = corpus_module.prepare_split
    monkeypatch.setattr(
        corpus_module,
        "prepare_split",
        lambda *a, **k: num_workers.append(k["num_workers"]) or real(*a, **k),
    )
    config = small_config(
        data=data | dict(root=str(root), cache=str(tmp_path / "shared"), num_workers=1)
    )
    corpus = prepare_corpus(task_of(config), tmp_path / "w")
    assert (
        num_workers == [1]
        and corpus.train.folder.parent == tmp_path / "shared"
        and not (tmp_path / "w" / "data").exists()
    )


def test_cpu_devices_and_the_cache_of_programs(monkeypatch):
    """Settings of the process, applied before JAX starts."""
    updates = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    process.prepare_process(changed(Config(), {"mesh.cpu_devices": 3}))
    assert updates["jax_num_cpu_devices"] == 3
    updates.clear()
    for given, expected in (("/of/jax", False), ("", True)):
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", given)
        process.prepare_process(Config())
        assert (
            "jax_compilation_cache_dir" in updates
        ) == expected and "jax_num_cpu_devices" not in updates


def test_stored_config_has_every_key():
    keys = {f"{group}.{key}" for group, keys in as_json(Config()).items() for key in keys}
    assert keys == {key for key in fields() if key.split(".")[0] in CORE_GROUPS}, (
        "groups of extensions only where they are set"
    )


# Keys whose effect is seen in the tests of what reads them.
ELSEWHERE = {
    "tests/cli/test_commands.py": "eval.bootstrap_samples",
    "tests/cli/test_final_evaluation.py": "checkpoint.average_last data.test",
    "tests/conformance/test_numpy_reference.py": "model.kernel_init model.embed_init",
    "tests/data/test_dataset.py": "data.corpus",
    "tests/decoding/test_translator.py": """decode.seed decode.batch_size decode.max_length_offset decode.max_length_ratio
        decode.strategy""",
    "tests/distributed/test_mesh.py": "mesh.data mesh.fsdp mesh.tensor mesh.rules",
    "tests/distributed/test_watcher.py": "distributed.heartbeat_timeout distributed.hang_timeout",
    "tests/distributed/test_zero.py": "mesh.slices mesh.fsdp_mode",
    "tests/evaluation/test_validation.py": "eval.decode_sentences",
    "tests/extensions/alignments/test_alignments.py": "alignments.layer alignments.head alignments.row",
    "tests/extensions/constraints/test_constrained.py": "constraints.ordered",
    "tests/extensions/constraints/test_lines.py": "constraints.lines constraints.glossary constraints.counted_terms",
    "tests/extensions/constraints/test_token_rules.py": """constraints.avoid constraints.suppress constraints.no_repeat_ngram
        constraints.min_length constraints.repetition_penalty""",
    "tests/extensions/corpora/test_filters.py": "filters.duplicates",
    "tests/extensions/corpora/test_language_filter.py": "filters.language",
    "tests/extensions/corpora/test_scorer.py": "filters.scorer filters.score",
    "tests/extensions/ensembles/test_members.py": "ensembles.members ensembles.weights decode.max_source_length",
    "tests/extensions/ensembles/test_ensemble.py": "ensembles.mean",
    "tests/extensions/finetuning/test_start.py": """finetuning.init_from finetuning.init_vocabulary finetuning.init_checkpoint
        data.tokenizer_model""",
    "tests/extensions/inspection/test_inspection.py": "inspection.profile_steps inspection.layers_every",
    "tests/extensions/interop/test_engine.py": "ctranslate2.quantization decode.engine",
    "tests/extensions/kernels/test_splash_attention.py": "model.attention_kernel",
    "tests/extensions/languages/test_directions.py": "languages.directions",
    "tests/extensions/languages/test_data.py": "languages.source_symbol",
    "tests/extensions/layer_types/test_model_variants.py": """model.feed_forward model.mixer layer_types.window
        layer_types.conv_kernel_size layer_types.rope_theta""",
    "tests/extensions/layer_types/test_numpy_reference.py": "model.norm_type",
    "tests/extensions/learned_metrics/test_learned_metrics.py": """learned_metrics.names learned_metrics.comet learned_metrics.kiwi
        learned_metrics.metricx learned_metrics.metricx_tokenizer learned_metrics.precision learned_metrics.batch_size
        learned_metrics.environments""",
    "tests/extensions/mixtures/test_mixtures.py": "mixtures.shares mixtures.batch_tokens mixtures.temperature",
    "tests/extensions/parsing/test_parsing.py": "data.task parsing.grammar parsing.word_numbers",
    "tests/extensions/planning/test_mfu.py": "planning.mfu",
    "tests/extensions/recipes/test_padded_batches.py": "recipes.batch_groups",
    "tests/extensions/subwords/test_unigram_sampling.py": "subwords.bpe_dropout subwords.unigram_alpha",
    "tests/extensions/trackers/test_clients.py": "trackers.group",
    "tests/extensions/trackers/test_trackers.py": "trackers.names",
    "tests/multiprocess/test_faults.py": "distributed.initialization_timeout",
    "tests/tasks/test_target_language.py": "eval.sacrebleu_tokenizer",
    "tests/tasks/test_translation_metrics.py": "data.pretokenized",
    "tests/training/test_changed_keys.py": "decode.precision",
    "tests/training/test_checkpoint_selection.py": "checkpoint.keep_last checkpoint.keep_best checkpoint.every_steps",
    "tests/training/test_early_stopping.py": "eval.metric eval.patience eval.decode_every_steps data.valid",
    "tests/training/test_epochs.py": "eval.every_epochs checkpoint.every_epochs",
    "tests/training/test_loop.py": "train.steps train.non_finite eval.every_steps log.every_steps",
}
HERE = "data.root data.cache data.num_workers mesh.cpu_devices seed.init seed.data"
"""Keys of single tests above."""


def search(config: Config):
    """The search of decode.strategy, which has all keys that it reads as fields."""
    return SEARCHES.load(config.decode.strategy)(config, SimpleNamespace(target=None))


SEARCHED = {
    "decode.beam_size": 5,
    "decode.length_penalty": "power",
    "decode.alpha": 0.9,
    "decode.early_stopping": "beam_full",
    "decode.n_best": 2,
    "decode.temperature": 0.5,
    "decode.top_k": 5,
    "decode.top_p": 0.5,
    "decode.epsilon": 0.1,
}


def test_every_key_has_a_declared_effect():
    elsewhere = {key for keys in ELSEWHERE.values() for key in keys.split()}
    tables = [PROGRAM, PREPARED, BATCHES, SEARCHED, elsewhere, HERE.split()]
    assert sorted(key for table in tables for key in table) == sorted(fields())
    for file, keys in ELSEWHERE.items():
        text = (Path(__file__).parents[2] / file).read_text()
        assert not [
            key for key in keys.split() if not re.search(rf"\b{key.split('.')[1]}\b", text)
        ], file


# Values of keys on which others depend, where these are not choices; the first one is the default.
VALUES = {
    "alignments.layer": (0, 1),
    "checkpoint.every_epochs": (0, 1),
    "checkpoint.every_steps": (1500, 0),
    "data.tokenizer_model": ("", "x.model"),
    "data.train": ("a.en,a.de", "a=a.en,a.de; b=b.en,b.de"),
    "ensembles.members": ("", "other"),
    "eval.decode_every_steps": (0, 5),
    "filters.scorer": ("", "x.py:f"),
    "finetuning.init_from": ("", "other"),
    "finetuning.lora_rank": (0, 2),
    "learned_metrics.names": ("", "comet", "kiwi", "metricx"),
    "loss.label_smoothing": (0.1, 0.0),
    "mesh.fsdp": (1, 2),
    "mesh.tensor": (1, 2),
    "mixtures.samples": ("", "a=9"),
    "mup.base_width": (0, 64),
    "trackers.names": ("tensorboard", ""),
}


def values_of(chooser: str) -> tuple:
    return VALUES.get(chooser) or tuple(fields()[chooser].metadata["choices"])


def value_in(values: dict):
    return lambda name: values.get(name, VALUES.get(name, (fields()[name].default,))[0])


def readable(key: str, values: dict) -> dict:
    """Values of other keys, beside these, with which a key is read."""
    while when := unmet(key, value_in(values)):
        chooser, test = when.tests[0]
        values = readable(chooser, values | {chooser: next(filter(test, values_of(chooser)))})
    return values


def as_groups(values: dict) -> dict:
    groups: dict = {}
    for name, value in values.items():
        groups.setdefault(name.split(".")[0], {})[name.split(".")[1]] = value
    return groups


CHOICES = sorted({
    (key, chooser, value)
    for key, needed in conditions().items() for when in needed for chooser, _ in when.tests for value in values_of(chooser)
}, key=str)  # fmt: skip


def test_a_key_without_an_effect_is_refused_and_named_with_what_takes_it_away():
    """For every key, and every value of the keys on which it depends."""
    refusals = 0
    for key, chooser, value in CHOICES:
        values = (
            {"data.train": VALUES["data.train"][0]}
            | readable(key, {})
            | {chooser: value, key: other_value(Config(), key)}
        )
        if unmet(key, value_in(values)):
            with refused(f"config.{key}", f"config.{chooser}"):
                resolve(as_groups(values))
            refusals += 1
    assert refusals > 60


@pytest.mark.parametrize("key", SEARCHED)
def test_key_changes_every_search_that_reads_it(key, monkeypatch):
    monkeypatch.setattr(
        "t2t_flax.extensions.constraints.constrained.begins_word", lambda tokenizer: b""
    )
    for strategy in SEARCHES:
        base = Config().with_values({"decode.strategy": strategy})
        same = search(base) == search(base.with_values({key: SEARCHED[key]}))
        assert same == (unmet(key, base.value) is not None), strategy


@pytest.mark.parametrize(
    "name",
    [
        "optimizer.lr_scale",
        "optimizer.peak_lr",
        "optimizer.b1",
        "optimizer.eps",
        "optimizers.cooldown_steps",
        "optimizers.momentum",
    ],
)
def test_key_changes_every_update_that_reads_it(name):
    chooser = next(chooser for when in conditions()[name] for chooser, _ in when.tests)
    decay = {"optimizers.decay_steps": 50, "optimizers.cooldown_steps": 20}
    base = small_config(model=SMALL).with_values(decay | {"optimizer.schedule": "inverse_sqrt"})
    for value in values_of(chooser):
        config = base.with_values({chooser: value})
        same = update_program(config) == update_program(
            config.with_values({name: PROGRAM[name][1]})
        )
        assert same == (unmet(name, config.value) is not None), value


def test_an_override_takes_back_values_that_it_leaves_without_effect(caplog):
    """They go back to the default, which the user is told.

    Values that are given together are refused.
    """
    _warn.cache_clear()
    stored = override(
        default_config(), {"decode.beam_size": "8", "decode.alpha": "1", "optimizer.lr_scale": "2"}
    )
    config = resolve(override(stored, {"decode.strategy": "greedy"}))
    assert (config.decode.beam_size, config.decode.alpha, config.optimizer.lr_scale) == (
        4,
        0.6,
        2.0,
    )
    assert_names(
        caplog.text, "config.decode.beam_size", "config.decode.alpha", "config.decode.strategy"
    )
    assert "lr_scale" not in caplog.text
    with refused("config.decode.beam_size", "config.decode.strategy", "'greedy'"):
        resolve(override(stored, {"decode.strategy": "greedy", "decode.beam_size": "8"}))
    chain = {"finetuning.init_from": "x", "finetuning.lora_rank": "2", "finetuning.lora_alpha": "8"}
    group = resolve(
        override(override(default_config(), chain), {"finetuning.init_from": ""})
    ).group("finetuning")
    assert (group.lora_rank, group.lora_alpha) == (0, 16.0)
