"""`selftest`: test devices for a config.

They are the devices of this process, or of all processes of a run.
"""

from t2t_flax import api
from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.distributed.supervisor import RunSupervisor, run_job
from t2t_flax.errors import OK
from t2t_flax.process_setup import prepare_process


def run(argv: list[str]) -> int:
    """Return exit code 0 where nothing is wrong, else 2."""
    parser = arguments.parser(
        "selftest",
        "Computes the layers, gradients and update of a small model of this config on the devices,"
        " by the programs of `train`,\nbeside float32 on the CPU. Names the first tensor and device"
        " that are wrong.",
        epilog=arguments.OVERRIDE_HELP,
    )
    arguments.add_config(parser)
    args, overrides = arguments.parse(parser, argv)
    config = api.resolve(args.config, overrides)
    prepare_process(config)
    with run_job(config) as supervisor:
        _test(config, supervisor)
    return OK


def _test(config: Config, supervisor: RunSupervisor) -> None:
    from t2t_flax.data.batching.rows import shape_of
    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.extensions.selftest.run import run_test
    from t2t_flax.training.precision import compute_dtype

    group = supervisor.group
    if config.train.precision == "auto":
        config = config.with_values({"train.precision": compute_dtype("auto").name})
    mesh = mesh_lib.make_mesh(config.mesh)
    mesh_lib.check_divisibility(config, mesh)
    data, shards = config.data, mesh_lib.batch_shards(mesh)
    length = data.pack_length if data.batching == "packed" else data.max_length
    shape = shape_of(length, max(1, data.batch_tokens // length), data.microbatch_tokens, shards)
    with supervisor.exit_on_signal("testing the devices"):
        report = run_test(config, mesh, (data.vocab_size, data.vocab_size), shape, group)
    group.say(report.summary)
    report.raise_if_faulty()
