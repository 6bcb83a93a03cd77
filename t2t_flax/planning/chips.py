"""Data sheets of the chips that a plan knows. Nothing here was measured by this project.

Sources: docs.cloud.google.com/tpu/docs/v5e, /v5p-training, /v6e, /v4, /v3 (HBM, its bandwidth, inter-chip and data-centre
bandwidth, the largest slice), read in November 2026; Jouppi et al. 2023 (arXiv 2304.01433), Table 4, for the links of v3
(4 of 70 GB/s) and v4 (6 of 50 GB/s); NVIDIA's A100, H100 and H200 data sheets (memory, NVLink) and DGX manuals (one 200 or
400 Gb/s port for each GPU).
bfloat16 peaks are those of `telemetry.flops`.
"""

import dataclasses

from t2t_flax.monitoring.flops import DATA_SHEET_TFLOPS

GIB, GB = 2.0**30, 1e9
HOP_SECONDS = 1e-6  # one link, one way: an assumption, of the order that is reported for TPUs


@dataclasses.dataclass(frozen=True)
class Chip:
    """`devices`: JAX devices of a chip. Bandwidths in bytes/s of a chip; a link's is one way. `axes`: of its torus;
    `wraps`: the size from which an axis is closed to a ring; `largest`: chips of the largest slice.
    `cores_in_name`: what the number of the vendor's name counts for each chip.
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
    per_host: int = 4
    config_name: str = "default"
    unsure: str = ""

    @property
    def peak_flops(self) -> float:
        """bfloat16 FLOP/s of a JAX device."""
        return DATA_SHEET_TFLOPS[self.kind] * 1e12


CHIPS = {
    # 400 GB/s of inter-chip bandwidth, both ways together, over 4 links; 6.4 Tb/s of the data-centre network for 256 chips.
    "v5e": Chip("TPU v5e", 16 * GIB, 819 * GB, 50 * GB, 3.125 * GB, 2, 16, 256),
    # 1,200 GB/s over 6 links; 50 Gb/s a chip. A pod has 8,960 chips, the largest slice 6,144.
    "v5p": Chip(
        "TPU v5p", 95 * GIB, 2765 * GB, 100 * GB, 6.25 * GB, 3, 4, 6144, cores_in_name=2, config_name="megacore"
    ),
    # 800 GB/s over 4 links (pages of 2024: 3,584 Gb/s); 25.6 Tb/s for 256 chips.
    "v6e": Chip("TPU v6e", 32 * GIB, 1638 * GB, 100 * GB, 12.5 * GB, 2, 16, 256),
    "v4": Chip(
        "TPU v4", 32 * GIB, 1200 * GB, 50 * GB, 6.25 * GB, 3, 4, 4096, cores_in_name=2, config_name="megacore",
        unsure="the data-centre bandwidth of a v4 chip (taken as 50 Gb/s)",
    ),
    "v3": Chip(
        "TPU v3", 32 * GIB, 900 * GB, 70 * GB, 3.125 * GB, 2, 32, 1024, devices=2, cores_in_name=2,
        unsure="the data-centre bandwidth of a v3 chip (taken as 25 Gb/s)",
    ),
}  # fmt: skip

# NVLink joins the 8 GPUs of a host through a switch: each sends at half the two-way figure of the data sheet.
GPUS = {
    "a100": Chip("NVIDIA A100", 80 * GIB, 2039 * GB, 300 * GB, 25 * GB, 1, 1, 8, per_host=8),
    "h100": Chip("NVIDIA H100", 80 * GIB, 3350 * GB, 450 * GB, 50 * GB, 1, 1, 8, per_host=8),
    "h200": Chip("NVIDIA H200", 141 * GB, 4800 * GB, 450 * GB, 50 * GB, 1, 1, 8, per_host=8),
}
