"""Kernels: fused attention in bfloat16, by cuDNN on NVIDIA GPUs and splash on TPUs.

Plain products stay where a kernel does not apply: windows in bands, attention dropout, ALiBi,
additive scores. cudnn takes heads of a multiple of 8 up to 128 and rows of even length, splash
heads of a multiple of 64 up to 256 and rows of a multiple of 128.
"""

from t2t_flax.registry import ATTENTION_KERNELS

ATTENTION_KERNELS.add("cudnn", "t2t_flax.extensions.kernels.cudnn")
ATTENTION_KERNELS.add("splash", "t2t_flax.extensions.kernels.splash")
