"""Memory of compiled programs."""

import jax
import jax.numpy as jnp

from t2t_flax.training import memory


def test_memory_of_a_program_is_checked():
    compiled = jax.jit(lambda x: (x @ x).sum()).lower(jax.ShapeDtypeStruct((512, 512), jnp.float32)).compile()
    assert memory.program_bytes(compiled) >= 512 * 512 * 4
    assert memory.device_memory() > 2**20
    memory.check_fits_in_memory("it", 10, None, "")
    memory.check_fits_in_memory("it", 10, 11, "")
