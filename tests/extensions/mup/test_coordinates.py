"""The coordinate check: with the rules activations change by as much at every size."""

import pytest
from helpers.configs import small_config
from helpers.refusals import refused

from t2t_flax.config import Config
from t2t_flax.extensions.mup import command
from t2t_flax.extensions.mup.coordinates import DEPTH, at_depth, at_width, changes, is_flat, slopes
from t2t_flax.registry import load_extensions

load_extensions()
BASE, WIDTHS = 64, (64, 512)


def config(**model) -> Config:
    """A model of width 64 with one head, of all the more width in wider models."""
    model = dict(d_model=BASE, d_ff=2 * BASE, num_heads=1) | model
    return small_config(model=model, optimizer=dict(peak_lr=4e-3), mup=dict(base_width=BASE))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [dict(norm_placement="pre"), dict(d_k=16, d_v=16, num_heads=4)],
    ids=["pre", "post, heads of 16"],
)
def test_changes_do_not_depend_on_the_width(model):
    found = slopes(
        {width: changes(at_width(config(**model), width), updates=4) for width in WIDTHS}
    )
    assert all(map(is_flat, found.values())), found


def deep() -> Config:
    model = dict(
        d_model=32,
        d_ff=64,
        num_heads=2,
        norm_placement="pre",
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    return small_config(
        model=model, optimizer=dict(peak_lr=4e-3), mup=dict(base_width=32, base_layers=1)
    )


@pytest.mark.slow
def test_changes_do_not_depend_on_the_depth():
    found = slopes({layers: changes(at_depth(deep(), layers), updates=4) for layers in (1, 3)})
    assert all(is_flat(found[kind]) for kind in DEPTH.flat), found


def test_widths_scale_heads_and_d_ff():
    m = at_width(config(), 128).model
    assert (m.d_model, m.d_ff, m.num_heads, m.head_widths) == (128, 256, 1, (128, 128))
    m = at_width(config(d_k=16, d_v=16, num_heads=4), 128).model
    assert (m.num_heads, m.head_widths) == (8, (16, 16))
    with refused("num_heads", "4.25"):
        at_width(config(d_k=16, d_v=16, num_heads=4), 68)
    with refused("66"):
        at_width(config(num_heads=4), 66)


def test_depths_are_those_of_the_stacks_that_there_are():
    m = at_depth(deep(), 3).model
    assert (m.num_encoder_layers, m.num_decoder_layers) == (3, 3)
    m = at_depth(deep().with_values({"model.num_encoder_layers": 0}), 3).model
    assert (m.num_encoder_layers, m.num_decoder_layers) == (0, 3)


SMALL = ("d_model=16", "d_ff=32", "num_encoder_layers=1", "num_decoder_layers=1")
FLAGS = ["--config=toy", "--config.mesh.cpu_devices=1", "--config.mup.base_width=16"]
FLAGS += ["--config.mup.base_layers=1", "--config.model.norm_placement=pre"]
FLAGS += [f"--config.model.{key}" for key in SMALL]


@pytest.mark.slow
def test_the_command_shows_slopes_and_draws(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "sizes.svg"
    assert command.run([*FLAGS, "--layers=1,2", "--updates=2", f"--picture={picture}"]) in (0, 1)
    out = capsys.readouterr().out
    assert out.count("embeddings") == out.count("logits") == 2 and "with the rules" in out
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--config=toy"], "mup.base_width"),
        ([*FLAGS, "--widths=16"], "two widths"),
        ([*FLAGS, "--widths=16,16"], "two widths"),
        ([*FLAGS, "--layers=2"], "two layers"),
        ([*FLAGS, "--layers=2,4", "--config.mup.base_layers=0"], "mup.base_layers"),
        ([*FLAGS, "--picture=x.txt"], "x.txt"),
    ],
)
def test_wrong_flags_are_named(flags, named):
    with refused(named):
        command.run(flags)
