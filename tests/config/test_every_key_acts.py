"""Config keys have an effect: they change the train step, the prepared data or the batches."""

import functools

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, random_pairs, small_config, write_store
from helpers.refusals import refused

from t2t_flax import process_setup as process
from t2t_flax.config import Config, as_json
from t2t_flax.config.schema import CORE_GROUPS, fields
from t2t_flax.data import dataset as corpus_module
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.dataset import prepare_corpus, split_source
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.tasks import task_of
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.train_state import init_state, make_model
from t2t_flax.training.train_step import loss_sums, make_train_step

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
    "optimizers.min_lr": (0.0, 1e-5, {"optimizer.schedule": "linear", "optimizers.decay_steps": 50}),
    "optimizers.cooldown_steps": (20, 30, {"optimizer.schedule": "wsd", "optimizers.decay_steps": 50}),
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
    params = init_state(config, model, make_optimizer(config), devices_mesh(), abstract=True)[0].params

    def loss(params, batch):
        return loss_sums(config, model, params, batch, Noise(noise_key(0, 0), np.arange(4, dtype=np.uint32)))

    return str(jax.make_jaxpr(loss)(params, abstract_batch(4, 24)))


@functools.cache
def update_program(config: Config) -> str:
    """The update of the optimizer as a jaxpr."""
    tx = make_optimizer(config)
    state, _ = init_state(config, make_model(config, 37, 37), tx, devices_mesh(), abstract=True)
    return str(jax.make_jaxpr(tx.update)(state.params, state.opt_state, state.params))


@functools.cache
def program(config: Config) -> str:
    """The train step as a jaxpr, which shows differences without compiling."""
    mesh = devices_mesh()
    model, tx = make_model(config, 37, 37), make_optimizer(config)
    state, shardings = init_state(config, model, tx, mesh, abstract=True)
    with mesh_lib.use(mesh):
        return str(make_train_step(config, model, tx, mesh, shardings).trace(state, abstract_batch(1, 4, 24)).jaxpr)


SMALL = dict(num_encoder_layers=1, num_decoder_layers=1, d_model=8, d_ff=16, num_heads=2)


@pytest.mark.parametrize("key", PROGRAM)
def test_key_changes_the_train_step(key):
    base, new_value, further = PROGRAM[key]
    config = changed(small_config(model=SMALL, train=dict(precision="float32")), further | {key: base})
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
            train="toy:train:150", vocab_size=300, byte_fallback=False, max_length=64, pack_length=64, batch_tokens=256
        )
    )
    swap = "?" in further.values()
    config = changed(config, {k: v for k, v in further.items() if v != "?"} | {key: base})
    second = changed(config, {key: new_value} | {k: base for k, v in further.items() if v == "?"})
    assert prepared(config) != prepared(second)
    if swap:
        pairs = [next(iter(split_source(task_of(c), "train").pairs())) for c in (config, second)]
        assert pairs[0] == pairs[1][::-1]


BATCHES = {"data.batch_tokens": 200, "data.batching": "buckets", "data.pack_length": 48, "data.microbatch_tokens": 48}


@pytest.mark.parametrize("key", BATCHES)
def test_key_changes_the_shapes(key, tmp_path):
    store = write_store(tmp_path / "store", random_pairs(200, longest=22))
    config = small_config()
    before, after = (Batches(store, c.data, seed=0).shapes for c in (config, changed(config, {key: BATCHES[key]})))
    assert before != after


def test_seed_data_changes_the_order(tmp_path):
    store = write_store(tmp_path / "store", random_pairs(200, longest=22))
    first, second = (Batches(store, small_config().data, seed=s).batch(0).pairs for s in (0, 1))
    assert not np.array_equal(first, second)


def test_seed_init_changes_the_parameters():
    tables = [
        np.asarray(model_and_state(small_config(model=SMALL, seed=dict(init=s)))[2].params["shared_embedding"]["table"])
        for s in (0, 0, 1)
    ]
    np.testing.assert_array_equal(tables[0], tables[1])
    assert not np.allclose(tables[0], tables[2])


def test_data_root_cache_and_num_workers(tmp_path, monkeypatch):
    """data.root: where relative paths start; data.cache: where stores go; data.num_workers: processes that tokenise."""
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
        corpus_module, "prepare_split", lambda *a, **k: num_workers.append(k["num_workers"]) or real(*a, **k)
    )
    config = small_config(data=data | dict(root=str(root), cache=str(tmp_path / "shared"), num_workers=1))
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
        assert ("jax_compilation_cache_dir" in updates) == expected and "jax_num_cpu_devices" not in updates


def test_stored_config_has_every_key():
    keys = {f"{group}.{key}" for group, keys in as_json(Config()).items() for key in keys}
    assert keys == {key for key in fields() if key.split(".")[0] in CORE_GROUPS}, (
        "groups of extensions only where they are set"
    )
