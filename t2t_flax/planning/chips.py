"""Data sheets of the chips that a plan knows. Nothing here was measured by this project.

Sources: cloud.google.com/tpu/docs/v5e, /v5p, /v6e, /v4, /v3 (HBM, its bandwidth, inter-chip and data-centre bandwidth of
a chip); Jouppi et al. 2023 (arXiv 2304.01433), Table 4, for the links of v3 (4 of 70 GB/s) and v4 (6 of 50 GB/s);
NVIDIA's A100, H100 and H200 data sheets (memory, NVLink) and DGX manuals (one 200 or 400 Gb/s port for each GPU).
bfloat16 peaks are those of `telemetry.flops`.
"""

import dataclasses

from t2t_flax.telemetry.flops import DATA_SHEET_TFLOPS

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
    # 1,600 Gb/s of inter-chip bandwidth over 4 links; 25 Gb/s of the data-centre network for a chip.
    "v5e": Chip("TPU v5e", 16 * GIB, 819 * GB, 50 * GB, 3.125 * GB, 2, 16, 256),
    # 4,800 Gb/s over 6 links; 50 Gb/s.
    "v5p": Chip(
        "TPU v5p", 95 * GIB, 2765 * GB, 100 * GB, 6.25 * GB, 3, 4, 8960, cores_in_name=2, config_name="megacore"
    ),
    # 3,584 Gb/s over 4 links (later pages say 800 GB/s both ways together); 100 Gb/s.
    "v6e": Chip("TPU v6e", 32 * GIB, 1640 * GB, 112 * GB, 12.5 * GB, 2, 16, 256),
    "v4": Chip(
        "TPU v4", 32 * GIB, 1228 * GB, 50 * GB, 6.25 * GB, 3, 4, 4096, cores_in_name=2, config_name="megacore",
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
