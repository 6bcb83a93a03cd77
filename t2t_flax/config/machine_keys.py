"""The keys of the devices and processes that a run is divided over; see `schema`."""

from dataclasses import dataclass

from t2t_flax.config.keys import key
from t2t_flax.config.sharding_rules import DEFAULT_RULES


@dataclass(frozen=True)
class Mesh:
    data: int = key(-1, "devices along the batch, parameters replicated; -1 = those that remain", low=-1, mutable=True)
    fsdp: int = key(1, "devices along the batch and the parameters; -1 = those that remain", low=-1, mutable=True)
    tensor: int = key(1, "devices along heads, d_ff and vocabulary; -1 = those that remain", low=-1, mutable=True)
    rules: str = key(
        DEFAULT_RULES,
        "which mesh axes divide which axis of the parameters and of their optimizer state; what is not named is not divided",
        mutable=True,
    )
    fsdp_mode: str = key(
        "full",
        "what the fsdp axis divides: parameters and optimizer state, or the optimizer state alone (ZeRO-1)",
        choices=("full", "zero1"),
        mutable=True,
    )
    slices: int = key(
        0,
        "groups of devices that the data-centre network joins; only the data axis runs across them; 0 = as the devices "
        "say",
        low=0,
        mutable=True,
    )
    cpu_devices: int = key(1, "devices that the CPU of each process is divided into", low=1, high=1024, mutable=True)


@dataclass(frozen=True)
class Distributed:
    initialization_timeout: int = key(
        300,
        "how long the processes of a run wait for each other at the start",
        unit="seconds",
        low=1,
        high=10**6,
        mutable=True,
    )
    heartbeat_timeout: int = key(
        30,
        "a process that has said nothing for this long is taken for dead",
        unit="seconds",
        low=3,
        high=10**6,
        mutable=True,
    )
    hang_timeout: int = key(
        900,
        "a run that has made no update and no step of an evaluation for this long is ended, with the stacks of its "
        "threads; 0 = never",
        unit="seconds",
        low=0,
        mutable=True,
    )
    straggler_share: float = key(
        0.1, "a process that makes the others wait for more than this share of the time is named", low=0.0, mutable=True
    )
