"""Kernels: fused attention in bfloat16, cuDNN's on NVIDIA GPUs and splash on TPUs; products in bfloat16 on CPUs.

Plain products stay where a kernel does not apply: windows in bands, attention dropout, ALiBi, additive scores. cudnn takes heads
of a multiple of 8 up to 128 and rows of even length, splash heads of a multiple of 64 up to 256 and rows of a multiple of 128.
"""

from t2t_flax.registry import ATTENTION_KERNELS, CPU_PRODUCTS

ATTENTION_KERNELS.add("cudnn", "t2t_flax.extensions.kernels.cudnn")
ATTENTION_KERNELS.add("splash", "t2t_flax.extensions.kernels.splash")
CPU_PRODUCTS.add("kernels", "t2t_flax.extensions.kernels.cpu_bfloat16")
