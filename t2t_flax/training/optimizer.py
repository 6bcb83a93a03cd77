"""Optimizers: Adam (5.3) and its alternatives, rows of `registry.OPTIMIZERS`: functions from config.optimizer to a
transformation of gradients to a direction, before weight decay and the learning rate, which all share.
"""

from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers

from t2t_flax.config import Config, Optimizer
from t2t_flax.errors import UserError
from t2t_flax.registry import OPTIMIZERS
from t2t_flax.training.matrix_axes import matrix_axes_of
from t2t_flax.training.schedules import learning_rate_schedule
from t2t_flax.training.train_state import path_names


def adam(o: Optimizer) -> optax.GradientTransformation:
    """Adam (Kingma and Ba 2015), with the constants of section 5.3 by default."""
    return optax.scale_by_adam(b1=o.b1, b2=o.b2, eps=o.eps)


adamw = adam  # with weight decay, which config/optimizer_keys.py requires


def adafactor(o: Optimizer) -> optax.GradientTransformation:
    """Adafactor (Shazeer and Stern 2018) without momentum. Its second moments are factored where two axes of a parameter
    have 128 or more elements. Updates are clipped to an RMS of 1 and scaled by the parameter's RMS, so that learning
    rates are relative: peaks near 1e-2 are usual.
    """
    return optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms())


def lion(o: Optimizer) -> optax.GradientTransformation:
    """Lion (Chen et al. 2023): the sign of a momentum. Rates are 3 to 10 times lower than Adam's."""
    return optax.scale_by_lion(b1=o.b1, b2=o.b2)


def muon(o: Optimizer) -> optax.GradientTransformation:
    """Muon (Jordan et al. 2024): orthogonalized momentum for the kernels; Adam, with Nesterov momentum as optax has it,
    for embeddings, norms and biases. Updates of kernels are scaled to Adam's usual RMS of 0.2 (Liu et al. 2025), so that
    one learning rate fits both.
    """
    return optax.contrib.muon(
        learning_rate=-1.0,  # optax flips the sign: this leaves the direction, for the learning rate that all share
        beta=o.momentum,
        adam_b1=o.b1,
        adam_b2=o.b2,
        eps=o.eps,
        muon_weight_dimension_numbers=matrix_axes,
        consistent_rms=0.2,
    )


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Clipping, the optimizer's direction, decoupled weight decay of matrices, and the learning rate.

    The tree of the state does not depend on `max_grad_norm`, which may change when a run is resumed. Raises ValueError
    for an unknown optimizer or schedule.
    """
    o = config.optimizer
    rate = learning_rate_schedule(o, config.model.d_model)
    direction = OPTIMIZERS.load(o.name)(o)
    parts = [_clip_before(direction, o.max_grad_norm) if o.max_grad_norm else direction]
    if o.weight_decay:
        parts.append(optax.add_decayed_weights(o.weight_decay, mask=decayed))
    parts.append(optax.scale_by_learning_rate(lambda count: rate(count + 1)))
    return optax.chain(*parts)


def has_bounded_updates(o: Optimizer) -> bool:
    """Whether finite gradients move each parameter by at most a multiple of the learning rate that depends on the betas: Lion
    by its sign, Adam by m / sqrt(v), which by Cauchy and Schwarz is at most (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)) before
    the correction of both biases. Not with weight decay, which moves a parameter by a multiple of itself.
    """
    return not o.weight_decay and (o.name == "lion" or (o.name in ("adam", "adamw") and o.b1**2 < o.b2))


def decayed(params: Any) -> Any:
    """True for each parameter that weight decay applies to: matrices and tables; no vector, bias or norm of any shape (a
    bias of attention is [heads, width]).
    """

    def is_matrix(path, leaf):
        return leaf.ndim > 1 and not path_names(path)[-1].endswith(("bias", "scale"))

    return jax.tree_util.tree_map_with_path(is_matrix, params)


def matrix_axes(params: Any) -> Any:
    """The input and output axes by which Muon reads each kernel as a matrix; None for what Adam trains. Raises ValueError
    for a kernel of unknown axes, UserError where no kernel is trained.
    """

    def axes(path, leaf):
        of_kernel = matrix_axes_of(path_names(path), leaf.shape)
        return of_kernel and MuonDimensionNumbers(*of_kernel)

    found = jax.tree_util.tree_map_with_path(axes, params)
    if not jax.tree.leaves(found):
        raise UserError(
            "config.optimizer.name = muon has nothing to orthogonalize: this run trains no kernel. Use "
            "config.optimizer.name = adam, by which all else is trained anyway."
        )
    return found


def _clip_before(inner: optax.GradientTransformation, norm: float) -> optax.GradientTransformation:
    """`inner` on gradients clipped to a global norm; the state is `inner`'s own."""
    clip = optax.clip_by_global_norm(norm)

    def update(grads, state, params=None):
        clipped, _ = clip.update(grads, optax.EmptyState())
        return inner.update(clipped, state, params)

    return optax.GradientTransformation(inner.init, update)
