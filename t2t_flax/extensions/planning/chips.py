"""Data sheets of the chips that `plan` knows.

This project measured none of the numbers.

TPU: docs.cloud.google.com/tpu/docs/v5e, /v5p-training, /v6e, /tpu7x, /v4, /v3 (HBM, bandwidths, the
largest slice), read in November 2026; names of TPU7x by size: github.com/AI-Hypercomputer/xpk,
whose tpu7x-128 is 4x4x4; links of v3 (4 of 70 GB/s) and v4 (6 of 50 GB/s): Jouppi et al. 2023,
arXiv 2304.01433, Table 4.

GPU: OpenXLA's target configs (xla/backends/gpu/target_config/specs in github.com/openxla/xla:
a100_sxm_80, h100_sxm, h200, b200, gb200, b300) for all that XLA's compiler needs, memory and its
bandwidth included; NVIDIA's data sheets for NVLink and DGX manuals for the network (one port of
200, 400 or, for B300, 800 Gb/s for each GPU).
"""

import dataclasses
from typing import Any

GIB, GB = 2.0**30, 1e9
HOP_SECONDS = 1e-6  # one link, one way: assumed, the order of magnitude reported for TPUs

# Dense bfloat16 TFLOP/s of one JAX device, from the vendors' data sheets.
DATA_SHEET_TFLOPS = {
    "TPU v3": 61.5,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5p": 459.0,
    "TPU v5": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
    "TPU7x": 1153.5,  # half a chip
    "NVIDIA A100": 312.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H100": 989.0,
    "NVIDIA H200": 989.0,
    "NVIDIA B200": 2250.0,
    "NVIDIA GB200": 2500.0,
    "NVIDIA B300": 2250.0,
}


@dataclasses.dataclass(frozen=True)
class GpuTarget:
    """Properties of a GPU that XLA's GPU compiler needs.

    Streaming multiprocessors, float32 units in each, bytes of L2 and of shared memory, and the
    compute capability.
    """

    name: str
    cores: int
    fpus_per_core: int
    clock_ghz: float
    l2_bytes: int
    shared_bytes: int
    shared_bytes_of_block: int
    capability: int
    features: str
    capability_minor: int = 0


@dataclasses.dataclass(frozen=True)
class Chip:
    """Data sheet of a chip, with bandwidths in bytes/s.

    Args:
        link_bandwidth: one link (on a GPU all of NVLink), one way.
        network_bandwidth: between slices or hosts.
        axes: axes of a TPU slice's torus.
        wraps: smallest size at which an axis closes to a ring.
        largest: chips of the largest slice or host.
        devices: JAX devices of a chip.
        cores_in_name: units that the number in the vendor's name counts for each chip.
        clock_ghz: clock of a TPU core, where published (v3, v4: Jouppi et al.) or implied by the
            peak and the size of the matrix units.
    """

    kind: str
    hbm_bytes: float
    hbm_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    axes: int
    wraps: int
    largest: int
    devices: int = 1
    cores_in_name: int = 1
    config_name: str = "default"
    uncertain: str = ""
    target: GpuTarget | None = None
    clock_ghz: float | None = None

    @property
    def peak_flops(self) -> float:
        """bfloat16 FLOP/s of a JAX device."""
        return DATA_SHEET_TFLOPS[self.kind] * 1e12

    @property
    def usable_bytes(self) -> float:
        """Memory that programs may use on a JAX device.

        On TPU all but 0.25 GiB (the compiler offers 15.75 of the 16 GiB of a v5e); on GPU the 75 %
        that JAX allocates unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
        """
        return 0.75 * self.hbm_bytes if self.target else self.hbm_bytes / self.devices - 0.25 * GIB


TPUS = {
    # 400 GB/s of inter-chip bandwidth, both ways, over 4 links; 6.4 Tb/s of data-centre network for
    # 256 chips.
    "v5e": Chip("TPU v5e", 16 * GIB, 819 * GB, 50 * GB, 3.125 * GB, 2, 16, 256, clock_ghz=1.503),
    # 1,200 GB/s over 6 links; 50 Gb/s a chip. A pod has 8,960 chips, the largest slice 6,144.
    "v5p": Chip(
        "TPU v5p", 95 * GIB, 2765 * GB, 100 * GB, 6.25 * GB, 3, 4, 6144,
        cores_in_name=2, config_name="megacore", clock_ghz=1.75,
    ),
    # 800 GB/s over 4 links (pages of 2024: 3,584 Gb/s); 25.6 Tb/s for 256 chips.
    "v6e": Chip("TPU v6e", 32 * GIB, 1638 * GB, 100 * GB, 12.5 * GB, 2, 16, 256, clock_ghz=1.75),
    # 1,200 GB/s over 6 links; 100 Gb/s a chip. Each of its two chiplets is a device.
    "tpu7x": Chip(
        "TPU7x", 192 * GIB, 7380 * GB, 100 * GB, 12.5 * GB, 3, 4, 9216, devices=2, cores_in_name=2,
    ),
    "v4": Chip(
        "TPU v4", 32 * GIB, 1200 * GB, 50 * GB, 6.25 * GB, 3, 4, 4096,
        cores_in_name=2, config_name="megacore", clock_ghz=1.05,
        uncertain="network bandwidth of a v4 chip (assumed: 50 Gb/s)",
    ),
    "v3": Chip(
        "TPU v3", 32 * GIB, 900 * GB, 70 * GB, 3.125 * GB, 2, 32, 1024, devices=2,
        cores_in_name=2, uncertain="network bandwidth of a v3 chip (assumed: 25 Gb/s)",
        clock_ghz=0.94,
    ),
}  # fmt: skip

_A100 = GpuTarget("NVIDIA A100-SXM4-80GB", 108, 64, 1.41, 41_943_040, 167_936, 166_912, 8, "NONE")
_H100 = GpuTarget(
    "NVIDIA H100 80GB HBM3", 132, 128, 1.98, 52_428_800, 233_472, 232_448, 9, "ACCELERATED_FEATURES"
)
_H200 = dataclasses.replace(_H100, name="NVIDIA H200 141GB HBM3e")
_B200 = GpuTarget(
    "NVIDIA B200", 148, 128, 1.965, 132_644_864, 233_472, 232_448, 10, "ACCELERATED_FEATURES"
)
_GB200 = GpuTarget(
    "NVIDIA GB200", 152, 128, 2.062, 135_528_448, 233_472, 232_448, 10, "ACCELERATED_FEATURES"
)
_B300 = GpuTarget(
    "NVIDIA B300", 158, 128, 1.965, 135_528_448, 233_472, 232_448, 10, "NONE", capability_minor=3
)

# NVLink joins the GPUs of a host (8) or of a rack of GB200 (72) through switches: each sends at
# half of the data sheet's two-way bandwidth.
GPUS = {
    "a100": Chip(
        "NVIDIA A100", 85_100_068_864, 2039.04 * GB, 300 * GB, 25 * GB, 1, 1, 8, target=_A100
    ),
    "h100": Chip(
        "NVIDIA H100", 84_942_979_072, 3352.32 * GB, 450 * GB, 50 * GB, 1, 1, 8, target=_H100
    ),
    "h200": Chip(
        "NVIDIA H200", 151_397_597_184, 4800 * GB, 450 * GB, 50 * GB, 1, 1, 8, target=_H200
    ),
    "b200": Chip(
        "NVIDIA B200", 191_514_411_008, 7672.32 * GB, 900 * GB, 50 * GB, 1, 1, 8, target=_B200
    ),
    "gb200": Chip(
        "NVIDIA GB200", 197_897_748_480, 7928.064 * GB, 900 * GB, 50 * GB, 1, 1, 72, target=_GB200
    ),
    "b300": Chip(
        "NVIDIA B300", 297_021_865_984, 7936 * GB, 900 * GB, 100 * GB, 1, 1, 8, target=_B300
    ),
}


def data_sheet_peak(device: Any) -> float | None:
    """Return the bfloat16 FLOP/s of a known `jax.Device`, else None."""
    kinds = [k for k in DATA_SHEET_TFLOPS if device.device_kind.lower().startswith(k.lower())]
    return DATA_SHEET_TFLOPS[max(kinds, key=len)] * 1e12 if kinds else None


def target_config(chip: Chip) -> str:
    """Return the `GpuTargetConfigProto` text with which XLA compiles for an absent GPU."""
    gpu = chip.target
    assert gpu
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_bytes}
  shared_memory_per_block_optin: {gpu.shared_bytes_of_block}
  core_count: {gpu.cores} fpus_per_core: {gpu.fpus_per_core} clock_rate_ghz: {gpu.clock_ghz}
  memory_bandwidth: {int(chip.hbm_bandwidth)} l2_cache_size: {gpu.l2_bytes}
  device_memory_size: {int(chip.hbm_bytes)}
  cuda_compute_capability {{
    major: {gpu.capability} minor: {gpu.capability_minor} feature_extension: {gpu.features}
  }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{gpu.name}"
"""
