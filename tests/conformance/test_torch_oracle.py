"""Encoder and decoder against PyTorch's nn.TransformerEncoder and nn.TransformerDecoder.

Outputs and gradients.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import VOCAB, model_and_state, random_pairs, rows_alone, small_config

from t2t_flax.training.losses import smoothed_cross_entropy

pytestmark = pytest.mark.torch

EPS = 1e-6
KINDS = {
    "post": dict(norm_placement="post", final_norm="none"),
    "pre": dict(norm_placement="pre", final_norm="both"),
}


@pytest.fixture(scope="module", params=["post", pytest.param("pre", marks=pytest.mark.slow)])
def case(request):
    """Return (model, parameters, batch, pairs).

    The model has two layers per stack, with biases and norm scales other than 0 and 1.
    """
    keys = dict(
        dropout=0.0, num_encoder_layers=2, num_decoder_layers=2, attention_bias=True, norm_eps=EPS
    )
    model, _, state, _ = model_and_state(small_config(model=keys | KINDS[request.param]))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: np.asarray(x), state.params)

    def shake(path, x):
        is_vector = path[-1].key in ("bias", "scale")
        return (x + 0.3 * rng.normal(size=x.shape)).astype(np.float32) if is_vector else x

    pairs = random_pairs(3, seed=1, longest=14)
    return model, jax.tree_util.tree_map_with_path(shake, params), rows_alone(pairs, 18), pairs


def linear(tree, name, into: int) -> dict[str, np.ndarray]:
    """Return PyTorch's weight [out, in] and bias [out]; a kernel's first `into` axes are inputs."""
    rows = math.prod(tree["kernel"].shape[:into])
    return {
        f"{name}.weight": tree["kernel"].reshape(rows, -1).T,
        f"{name}.bias": tree["bias"].ravel(),
    }


def attention(tree, name) -> dict[str, np.ndarray]:
    parts = [linear(tree[part], "x", 1) for part in ("query", "key", "value")]
    fused = {
        f"{name}.in_proj_{kind}": np.concatenate([p[f"x.{kind}"] for p in parts])
        for kind in ("weight", "bias")
    }
    return fused | linear(tree["out"], f"{name}.out_proj", 2)


def norm(tree, name) -> dict[str, np.ndarray]:
    return {f"{name}.weight": tree["scale"], f"{name}.bias": tree["bias"]}


def as_torch(params, layers: int) -> dict[str, np.ndarray]:
    """Our tree of parameters or gradients under PyTorch's names."""
    out = {"table": params["shared_embedding"]["table"]}
    for stack in ("encoder", "decoder"):
        for n in range(layers):
            ours, theirs = params[f"{stack}_{n}"], f"{stack}.layers.{n}"
            out |= attention(ours["self_attention"], f"{theirs}.self_attn")
            out |= linear(ours["feed_forward"]["Einsum_0"], f"{theirs}.linear1", 1)
            out |= linear(ours["feed_forward"]["Einsum_1"], f"{theirs}.linear2", 1)
            residuals = ["residual_attention", "residual_ffn"]
            if stack == "decoder":
                out |= attention(ours["cross_attention"], f"{theirs}.multihead_attn")
                residuals.insert(1, "residual_cross")
            for number, residual in enumerate(residuals, 1):
                out |= norm(ours[residual]["norm"], f"{theirs}.norm{number}")
        if f"{stack}_norm" in params:
            out |= norm(params[f"{stack}_norm"], f"{stack}.norm")
    return {name: np.asarray(x) for name, x in out.items()}


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def twin(torch, model, params):
    from helpers.torch_transformer import Seq2Seq

    module = Seq2Seq(model.config, params["shared_embedding"]["table"].shape[0], EPS)
    weights = as_torch(params, model.config.num_encoder_layers)
    module.load_state_dict({name: torch.tensor(x) for name, x in weights.items()}, strict=True)
    return module.train()  # no dropout; train mode avoids PyTorch's fused inference kernels


@functools.partial(jax.jit, static_argnums=0)
def ours(model, params, batch):
    variables, source = (
        {"params": params},
        [batch[f"source{x}"] for x in ("", "_segments", "_positions")],
    )
    return model.apply(variables, *source, method="encode"), model.apply(
        variables, batch, method="hidden"
    )


def ids_of(torch, batch):
    return torch.tensor(batch["source"]).long(), torch.tensor(batch["target"]).long()


def test_hidden_states_equal_pytorchs(torch, case):
    model, params, batch, pairs = case
    memory, hidden = ours(model, params, batch)
    with torch.no_grad():
        their_memory, their_hidden = twin(torch, model, params)(*ids_of(torch, batch))
    for i, (source, target) in enumerate(pairs):
        for actual, expected, length in (
            (memory, their_memory, len(source)),
            (hidden, their_hidden, len(target)),
        ):
            actual, expected = np.asarray(actual[i, :length]), expected[i, :length].numpy()
            assert expected.std() > 0.5
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_every_gradient_equals_pytorchs(torch, case):
    """d loss / d parameter, through the tied table and label smoothing over all classes."""
    model, params, batch, _ = case
    real = (batch["target_segments"] > 0).astype(np.float32)

    @jax.jit
    def loss_of(params):
        logits = model.apply({"params": params}, batch)
        return (
            smoothed_cross_entropy(0.1, "all", VOCAB, logits, batch["target"], jnp.asarray(real))[0]
            / real.sum()
        )

    loss, gradients = jax.value_and_grad(loss_of)(params)
    module = twin(torch, model, params)
    source, target = ids_of(torch, batch)
    logits = module(source, target)[1] @ module.table[:VOCAB].T
    cross_entropy = functools.partial(
        torch.nn.functional.cross_entropy, ignore_index=0, label_smoothing=0.1
    )
    their_loss = cross_entropy(logits.flatten(0, 1), target.flatten())
    their_loss.backward()
    assert float(loss) == pytest.approx(their_loss.item(), abs=1e-5)
    expected = {name: x.grad.numpy() for name, x in module.named_parameters()}
    actual = as_torch(gradients, model.config.num_encoder_layers)
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(actual[name], gradient, rtol=0, atol=1e-5, err_msg=name)
    assert max(np.abs(x).max() for x in expected.values()) > 0.05
