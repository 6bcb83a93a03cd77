"""The text of optimized programs: collectives in all their forms, loops and custom calls."""

import pytest
from helpers.refusals import refused

from t2t_flax.extensions.planning import hlo
from t2t_flax.extensions.planning.collectives import Collective, collectives, first_group

ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def program(body: str, before: str = ""):
    text = f"HloModule m, is_scheduled=true\n{ADD}{before}\nENTRY %main (p: f32[8,4]) -> f32[8,4] {{\n{body}\n}}\n"
    return hlo.parse(text)


def collectives_of(body: str, before: str = "", devices: int = 8) -> list[Collective]:
    return collectives(program(body, before), devices)


def test_bytes_count_the_whole_array_of_every_kind():
    body = (
        "  %p = bf16[8,4]{1,0} parameter(0)\n"
        "  %g = bf16[32,4]{1,0} all-gather(%p), replica_groups=[2,4]<=[8], dimensions={0}\n"
        "  %s = bf16[2,4]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add\n"
        "  %e = bf16[8,4]{1,0} all-to-all(%p), replica_groups=[4,2]<=[8], dimensions={0}\n"
        "  %q = bf16[3]{0:T(256)(128)(2,1)S(1)} parameter(1)\n"
        "  %m = bf16[8,4]{1,0} collective-permute(%p), source_target_pairs={{0,1},{1,2}}\n"
        "  %one = f32[8,4]{1,0} all-reduce(%p), replica_groups={{0},{1}}, to_apply=%add\n"
        "  ROOT %r = (bf16[8,4]{1,0}, /*index=1*/bf16[3]{0}) all-reduce(%p, %q), replica_groups={}, to_apply=%add"
    )
    assert [(c.kind, c.bytes, len(c.group)) for c in collectives_of(body)] == [
        ("all-gather", 4 * 64, 4),
        ("reduce-scatter", 64, 4),
        ("all-to-all", 64, 2),
        ("collective-permute", 64, 2),
        ("all-reduce", 64 + 6, 8),
    ]


PAIR = (
    "  %p = f32[8,4] parameter(0)\n"
    "  %s = f32[8,4] all-reduce-start(%p), replica_groups={{{{0,1}}}}, to_apply=%add\n"
    "{between}"
    "  ROOT %d = f32[8,4] all-reduce-done(%s)"
)


@pytest.mark.parametrize(
    ("between", "overlaps"),
    [
        ("", False),
        ("  %b = f32[32] bitcast(%p)\n", False),
        ("  %w = f32[8,8] dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n", True),
    ],
)
def test_pair_overlaps_only_with_work_between_start_and_done(between, overlaps):
    (one,) = collectives_of(PAIR.format(between=between))
    assert (one.kind, one.group, one.overlaps) == ("all-reduce", (0, 1), overlaps)


LOOP = """
%body (s: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {{
  %s = (s32[], f32[8,4]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8,4] get-tuple-element(%s), index=1
  %y = f32[8,4] all-reduce(%x), replica_groups={{{{0,1}}}}, to_apply=%add
  ROOT %t = (s32[], f32[8,4]) tuple(%i, %y)
}}
%condition (s: (s32[], f32[8,4])) -> pred[] {{
  %s = (s32[], f32[8,4]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(13)
  ROOT %c = pred[] compare(%i, %n), direction={direction}
}}
"""
ENTRY_LOOP = "  %p = (s32[], f32[8,4]) parameter(0)\n  ROOT %w = (s32[], f32[8,4]) while(%p), condition=%condition, body=%body"


def test_loops_multiply_by_known_trip_counts():
    (one,) = collectives_of(ENTRY_LOOP, LOOP.format(direction="LT"))
    assert (one.times, one.known, one.overlaps, one.in_loop) == (13, True, False, True)
    (one,) = collectives_of(ENTRY_LOOP, LOOP.format(direction="NE"))
    assert (one.times, one.known) == (1, False)
    stated = ENTRY_LOOP + ', backend_config={"known_trip_count":{"n":"7"}}'
    assert collectives_of(stated, LOOP.format(direction="NE"))[0].times == 7


@pytest.mark.parametrize(
    ("size", "made", "sums"),
    [
        ("8,4", "", True),
        ("", "", False),
        (
            "8,4",
            "  %z = f32[8,4] broadcast(%p)\n  %x = f32[8,4] dynamic-update-slice(%z, %p, %i)\n",
            False,
        ),
    ],
    ids=["array", "number", "gathering by a sum of parts"],
)
def test_sums_of_arrays_are_told_from_others(size, made, sums):
    (one,) = collectives_of(
        f"  %p = f32[{size}] parameter(0)\n  %i = s32[] constant(0)\n{made}"
        f"  ROOT %r = f32[{size}] all-reduce({'%x' if made else '%p'}), replica_groups={{{{0,1}}}}, to_apply=%add"
    )
    assert one.sums == sums and not one.in_loop


def test_collective_in_several_fusions_counts_once():
    def fused(name, inner, root):
        return (
            f"\n%{name} (x: f32[2,4]) -> f32[8,4] {{\n  %x = f32[2,4] parameter(0)\n{inner}"
            "  %g = f32[8,4] all-gather(%x), channel_id=5, replica_groups={{0,1,2,3}}, dimensions={0}\n"
            f'  ROOT %o = f32[8,4] custom-call(%g), custom_call_target="{root}"\n}}\n'
        )

    product = "  %y = f32[2,2] convolution(%x, %x), dim_labels=bf_io->bf\n"
    before = (
        fused("start", "", "AsyncCollectiveStart")
        + fused("middle", product, "Go")
        + fused("done", "", "AsyncCollectiveDone")
    )
    body = (
        "  %p = f32[2,4] parameter(0)\n"
        "  %a = f32[8,4] fusion(%p), kind=kCustom, calls=%start\n"
        "  %b = f32[8,4] fusion(%a), kind=kCustom, calls=%middle\n"
        "  ROOT %c = f32[8,4] fusion(%b), kind=kCustom, calls=%done"
    )
    assert collectives_of(body, before) == [
        Collective("all-gather", 128, (0, 1, 2, 3), overlaps=True)
    ]
    without = body.replace("  %b = f32[8,4] fusion(%a), kind=kCustom, calls=%middle\n", "").replace(
        "(%b)", "(%a)"
    )
    assert collectives_of(without, before) == [
        Collective("all-gather", 128, (0, 1, 2, 3), overlaps=False)
    ]


def test_transfers_between_slices_count_as_their_operation():
    marks = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="r_0",'
        '_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    body = (
        "  %p = f32[8,4] parameter(0)\n"
        "  %t = token[] after-all()\n"
        f"  %s = (f32[8,4], u32[], token[]) send(%p, %t), channel_id=2, {marks}\n"
        f"  %r = (f32[8,4], u32[], token[]) recv(%t), channel_id=1, {marks}\n"
        "{between}"
        "  %d = (f32[8,4], token[]) recv-done(%r), channel_id=1\n"
        "  ROOT %o = f32[8,4] get-tuple-element(%d), index=0"
    )
    work = "  %w = f32[8,8] dot(%p, %p)\n"
    assert collectives_of(body.replace("{between}", "")) == [
        Collective("all-reduce", 128, (0,), across_slices=True)
    ]
    assert collectives_of(body.replace("{between}", work))[0].overlaps


@pytest.mark.parametrize(
    ("attributes", "group"),
    [
        ("replica_groups={{0,2},{1,3}}", (0, 2)),
        ("replica_groups=[4,2]<=[8]", (0, 1)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", (0, 4)),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", (0, 1, 2, 3)),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", (0, 4)),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(2)2}", (0, 2)),
        ("replica_groups=mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}", (0, 1, 2, 3)),
        ("replica_groups=mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'c'}", (0, 4)),
        ("channel_id=1", tuple(range(8))),
        ("replica_groups={}", tuple(range(8))),
    ],
)
def test_replica_groups_in_every_notation(attributes, group):
    assert first_group(attributes, 8) == group


def test_unknown_group_notation_is_an_error():
    with refused("devices<0-7>", error=ValueError):
        first_group("channel_id=1, replica_groups=devices<0-7>, dimensions={0}", 8)


GPU_STEP = """\
  %p = bf16[8,4]{1,0} parameter(0)
  %start = bf16[8,4]{1,0:S(1)} all-reduce-start(%p), channel_id=1, replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, use_global_device_ids=true, to_apply=%add, backend_config={"collective_backend_config":{"is_sync":false}}
  %gemm_fusion_dot = bf16[8,8]{1,0} fusion(%p), kind=kCustom, calls=%gemm, backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}
  %gemm = (bf16[8,8]{1,0}, s8[4096]{0}) custom-call(%p, %p), custom_call_target="__cublas$gemm"
  %done = bf16[8,4]{1,0} all-reduce-done(%start)
  ROOT %sum = bf16[8,4]{1,0} fusion(%done), kind=kLoop, calls=%add
"""


def test_gpu_program_overlaps_and_calls_cublas():
    gpu = program(GPU_STEP)
    assert collectives(gpu, 8) == [Collective("all-reduce", 64, tuple(range(8)), overlaps=True)]
    assert hlo.custom_calls(gpu) == {"__cublas$gemm": 1}


def test_kernels_are_counted_without_bookkeeping():
    """Metadata over several lines does not end the program."""
    body = (
        "  %p = f32[8,4] parameter(0)\n"
        '  %c = f32[16,4] custom-call(%p, %p), custom_call_target="ConcatBitcast"\n'
        '  %k = f32[8,4]{1,0} custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={\n'
        '"block": "128"\n'
        '}}, metadata={op_name="kernel"}\n'
        "  ROOT %r = f32[8,4]{1,0} negate(%k)"
    )
    parsed = program(body)
    assert hlo.custom_calls(parsed) == {"tpu_custom_call": 1}
    assert 'op_name="kernel"' in parsed.computations["main"].instructions["k"].attributes
