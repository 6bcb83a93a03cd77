"""Memory of compiled programs."""

import jax
import jax.numpy as jnp
from helpers.refusals import refused

from t2t_flax.training import setup


def test_memory_of_a_program_is_checked():
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    struct = lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=here)  # noqa: E731
    compiled = jax.jit(lambda x: (x @ x).sum()).lower(struct((512, 512))).compile()
    assert setup.program_memory(compiled)["peak"] >= 512 * 512 * 4
    assert setup.device_memory() > 2**20
    for available in (None, 2**30):
        setup.check_fits_in_memory(compiled, available, "it", "")
    with refused("3.00 GiB", "1.00 GiB", "Use less"):
        setup.check_fits_in_memory(
            compiled, 2**30, "it", "Use less.", resident=struct((768, 2**20))
        )
