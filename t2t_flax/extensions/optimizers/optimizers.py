"""Alternative optimizers; rows of `registry.OPTIMIZERS`."""

from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers

from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.extensions.optimizers import Optimizers
from t2t_flax.extensions.shared.matrices import matrix_axes_of
from t2t_flax.training.parametrization import path_names


def adafactor(config: Config) -> optax.GradientTransformation:
    """Adafactor (Shazeer and Stern 2018) without momentum.

    Its second moments are factored where two axes of a parameter have 128 or more elements. Updates
    are clipped to an RMS of 1 and scaled by the parameter's RMS, so that learning rates are
    relative: peaks near 1e-2 are usual.
    """
    return optax.chain(
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )


def lion(config: Config) -> optax.GradientTransformation:
    """Lion: the sign of a momentum.

    Rates are 3 to 10 times lower than Adam's. See Chen et al. 2023.
    """
    return optax.scale_by_lion(b1=config.optimizer.b1, b2=config.optimizer.b2)


def nadamw(config: Config) -> optax.GradientTransformation:
    """Adam with Nesterov momentum (Dozat 2016), as in optax.

    It is b1 m / (1 - b1^(t + 1)) + (1 - b1) g / (1 - b1^t) in place of m / (1 - b1^t). With
    weight_decay it is NAdamW.
    """
    o = config.optimizer
    return optax.scale_by_adam(b1=o.b1, b2=o.b2, eps=o.eps, nesterov=True)


def muon(config: Config) -> optax.GradientTransformation:
    """Muon (Jordan et al. 2024): orthogonalized momentum for the kernels.

    Adam, with Nesterov momentum as in optax, trains embeddings, norms and biases. Updates of
    kernels are scaled to Adam's usual RMS of 0.2 (Liu et al. 2025), so that one learning rate fits
    both.
    """
    o = config.optimizer
    return optax.contrib.muon(
        learning_rate=-1.0,  # undoes optax's sign; the shared learning rate scales the direction
        beta=Optimizers.of(config).momentum,
        adam_b1=o.b1,
        adam_b2=o.b2,
        eps=o.eps,
        muon_weight_dimension_numbers=muon_axes,
        consistent_rms=0.2,
    )


def muon_axes(params: Any) -> Any:
    """Return the input and output axes with which Muon reads each kernel as a matrix.

    None for parameters that Adam trains. Raises ValueError for a kernel of unknown axes, UserError
    if no kernel is trained.
    """

    def axes(path, leaf):
        of_kernel = matrix_axes_of(path_names(path), leaf.shape)
        return of_kernel and MuonDimensionNumbers(*of_kernel)

    found = jax.tree_util.tree_map_with_path(axes, params)
    if not jax.tree.leaves(found):
        raise UserError(
            "config.optimizer.name = muon has nothing to orthogonalize: this run trains no kernel."
            " Use config.optimizer.name = adam, by which all else is trained anyway."
        )
    return found
