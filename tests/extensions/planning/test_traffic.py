"""Bytes, FLOPs, cycles and parts of the kernels of optimized programs."""

import pytest

from t2t_flax.extensions.planning import hlo, traffic
from t2t_flax.extensions.planning.chips import GPUS, TPUS

SLICES = """
%slicing (a: f32[100,4], b: f32[1,4]) -> f32[1,4] {
  %a = f32[100,4] parameter(0)
  %b = f32[1,4] parameter(1)
  %i = s32[] constant(3)
  %double = f32[100,4] multiply(%a, %a)
  %s = f32[1,4] dynamic-slice(%double, %i, %i), dynamic_slice_sizes={1,4}
  ROOT %r = f32[1,4] add(%s, %b)
}
%updating (a: f32[100,4], b: f32[1,4], i: s32[]) -> f32[100,4] {
  %a = f32[100,4] parameter(0)
  %same = f32[100,4] bitcast(%a)
  %b = f32[1,4] parameter(1)
  %i = s32[] parameter(2)
  ROOT %u = f32[100,4] dynamic-update-slice(%same, %b, %i, %i)
}
%looking_up (table: f32[100,4], ids: s32[6,1]) -> f32[6,4] {
  %table = f32[100,4] parameter(0)
  %ids = s32[6,1] parameter(1)
  ROOT %g = f32[6,4] gather(%table, %ids), offset_dims={1}
}
%adding (table: f32[100,4], ids: s32[6,1], x: f32[6,4]) -> f32[100,4] {
  %table = f32[100,4] parameter(0)
  %ids = s32[6,1] parameter(1)
  %x = f32[6,4] parameter(2)
  ROOT %s = f32[100,4] scatter(%table, %ids, %x), to_apply=%add
}
%summing (a: f32[100,4]) -> (f32[4], f32[100,4]) {
  %a = f32[100,4] parameter(0)
  %zero = f32[] constant(0)
  %sum = f32[4] reduce(%a, %zero), dimensions={0}, to_apply=%add
  %n = f32[100,4] negate(%a)
  ROOT %t = (f32[4], f32[100,4]) tuple(%sum, %n)
}
%inner (x: bf16[8,3]) -> bf16[8,2] {
  %x = bf16[8,3] parameter(0)
  ROOT %d = bf16[8,2] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}
%multiplying (x: bf16[8,3]) -> bf16[8,2] {
  %x = bf16[8,3] parameter(0)
  ROOT %f = bf16[8,2] fusion(%x), kind=kCustom, calls=%inner
}
"""
INPUTS = """
  %a = f32[100,4] parameter(0)
  %b = f32[1,4] parameter(1)
  %i = s32[] parameter(2)
  %ids = s32[6,1] parameter(3)
  %x = f32[6,4] parameter(4)
  %m = bf16[8,3] parameter(5)
  %q = bf16[2,16,4,8] parameter(6)
"""
GEMM = (
    'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
)
SCORES = '"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"dimensions": ["2", "4", "16", "16"], "layout": {}}}'


def kernels_of(body: str, before: str = "") -> list[traffic.Kernel]:
    text = f"HloModule m\n{SLICES}{before}\nENTRY %main (a: f32[100,4]) -> f32[4] {{{INPUTS}{body}\n}}\n"
    return traffic.kernels(hlo.parse(text))


@pytest.mark.parametrize(
    ("instruction", "read", "written", "flops"),
    [
        ("f32[1,4] fusion(%a, %b), kind=kLoop, calls=%slicing", 16 + 16, 16, 0),
        ("f32[100,4] fusion(%a, %b, %i), kind=kLoop, calls=%updating", 16 + 4, 16, 0),
        ("f32[6,4] fusion(%a, %ids), kind=kLoop, calls=%looking_up", 96 + 24, 96, 0),
        ("f32[100,4] fusion(%a, %ids, %x), kind=kInput, calls=%adding", 96 + 24 + 96, 96, 0),
        ("(f32[4], f32[100,4]) fusion(%a), kind=kInput, calls=%summing", 1600, 16 + 1600, 0),
        ("bf16[8,2] fusion(%m), kind=kCustom, calls=%multiplying", 48, 32, 2 * 8 * 2 * 3),
        (f"(bf16[8,2], s8[999]) custom-call(%m, %m), {GEMM}", 96, 32, 2 * 8 * 2 * 3),
        ("f32[1,4] dynamic-slice(%a, %i, %i)", 16 + 8, 16, 0),
        ("f32[100,4] dynamic-update-slice(%a, %b, %i)", 16 + 4, 16, 0),
        ("(f32[1,4], f32[1,4], u32[]) copy-start(%b)", 16, 20, 0),
        (
            "((f32[100,4], f32[1,4]), f32[1,4], u32[]) fusion-start(%a, %b), kind=kLoop, calls=%slicing",
            32,
            16,
            0,
        ),
        ("f32[100,4] all-reduce-start(%a), to_apply=%add", 1600, 1600, 0),
    ],
    ids=lambda value: value.split(" ")[-1][:20] if isinstance(value, str) else "",
)
def test_bytes_and_flops_of_a_kernel(instruction, read, written, flops):
    (kernel,) = kernels_of(f"  ROOT %r = {instruction}")
    assert (kernel.read, kernel.written, kernel.flops) == (read, written, flops)


@pytest.mark.parametrize(("name", "products"), [("fmhaSoftmax", 2), ("fmhaSoftmaxBackward", 5)])
def test_flops_of_cudnn_attention(name, products):
    call = (
        f'custom-call(%q, %q, %q), custom_call_target="__cudnn${name}", backend_config={{{SCORES}}}'
    )
    (kernel,) = kernels_of(f"  ROOT %r = (bf16[2,4,16,8], u8[0]) {call}")
    assert (
        kernel.flops == products * 2 * (2 * 4 * 16 * 16) * 8 and kernel.called == f"__cudnn${name}"
    )
    assert kernel.bytes == 4 * 2048


def test_totals_count_loops_and_called_kernels():
    loop = """
%body (s: (f32[1,4])) -> (f32[1,4]) {
  %s = (f32[1,4]) parameter(0)
  %x = f32[1,4] get-tuple-element(%s), index=0
  %c = f32[1,4] custom-call(%x), custom_call_target="tpu_custom_call"
  %n = f32[1,4] negate(%c), backend_config={"estimated_cycles":"10"}
  ROOT %t = (f32[1,4]) tuple(%n)
}
%condition (s: (f32[1,4])) -> pred[] {
  %s = (f32[1,4]) parameter(0)
  ROOT %c = pred[] constant(true)
}
"""
    stated = 'backend_config={"known_trip_count":{"n":"7"}}'
    kernels = kernels_of(
        '  %p = f32[1,4] copy(%b), backend_config={"estimated_cycles":"5"}\n  %t = (f32[1,4]) tuple(%p)\n'
        f"  ROOT %w = (f32[1,4]) while(%t), condition=%condition, body=%body, {stated}",
        loop,
    )
    assert traffic.totals(kernels) == {
        "kernels": 15, "custom_calls": 7, "bytes": 15 * 32, "flops": 0, "cycles": 5 + 70,
    }  # fmt: skip


def test_bytes_become_seconds_by_data_sheet_and_cycles_by_the_clock():
    kernels = kernels_of(
        '  ROOT %r = f32[100,4] negate(%a), backend_config={"estimated_cycles":"3006"}'
    )
    assert traffic.gpu_traffic(kernels, GPUS["h100"]) == {
        "kernels": 1, "custom_calls": 0, "bytes": 3200, "seconds": 3200 / 3352.32e9,
    }  # fmt: skip
    estimate = traffic.tpu_estimate(kernels, TPUS["v5e"])
    assert estimate == {"cycles": 3006, "seconds": pytest.approx(2e-6), "custom_calls": 0}
    assert traffic.tpu_estimate(kernels, TPUS["tpu7x"])["seconds"] is None


HIDDEN = "jit(step)/transpose(jvp(Transformer.hidden))/Transformer.decode/"


@pytest.mark.parametrize(
    ("op_name", "part"),
    [
        ("jit(step)/jvp()/while/body/eval_jaxpr/nd,vd->nv/dot_general", traffic.LOSS),
        ("jit(step)/jvp()/while/body/eval_jaxpr/nv,nd->vd/dot_general", traffic.LOSS),
        ("jit(step)/jvp()/while/body/eval_jaxpr/jvp()/cond/branch_0_fun/reduce", traffic.LOSS),
        (HIDDEN + "decoder_1/residual_cross/cross_attention/cross_attention.over/cross_attention.attend/score/dot",
         traffic.ATTENTION),
        (HIDDEN + "decoder_1/residual_attention/self_attention/rotation/mul", traffic.ATTENTION),
        (HIDDEN + "decoder_1/residual_attention/self_attention/self_attention.keys_values/key/dot", traffic.PROJECTIONS),
        (HIDDEN + "decoder_1/residual_attention/self_attention/out/convert_element_type", traffic.PROJECTIONS),
        (HIDDEN + "decoder_1/residual_ffn/feed_forward/Einsum_1/dot", traffic.FEED_FORWARD),
        (HIDDEN + "decoder_1/residual_attention/norm/mul", traffic.NORM),
        (HIDDEN + "decoder_norm/mul", traffic.NORM),
        (HIDDEN + "target_dropout/xor", traffic.EMBEDDINGS),
        (HIDDEN + "shared_embedding/jit(_take)/scatter-add", traffic.EMBEDDINGS),
        ("jit(step)/jit(_where)/select_n", traffic.OTHER),
        ("", traffic.OTHER),
    ],
)  # fmt: skip
def test_parts_of_the_step(op_name, part):
    (kernel,) = kernels_of(f'  ROOT %r = f32[100,4] negate(%a), metadata={{op_name="{op_name}"}}')
    assert kernel.part == part


def test_part_of_a_fusion_without_a_name_is_that_of_its_result():
    names = (
        'metadata={op_name="feed_forward/add"}',
        'metadata={op_name="decoder_1/residual_ffn/add"}',
    )
    body = (
        f"%fused (a: f32[4]) -> f32[4] {{\n  %a = f32[4] parameter(0)\n  %n = f32[4] negate(%a), {names[0]}\n"
        f"  ROOT %r = f32[4] negate(%n), {names[1]}\n}}\n"
    )
    (kernel,) = kernels_of("  ROOT %r = f32[4] fusion(%b), kind=kLoop, calls=%fused", body)
    assert kernel.part == traffic.NORM
