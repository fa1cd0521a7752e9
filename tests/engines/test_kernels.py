import shutil

import pytest
import torch
import torch.nn.functional as F

from mstar_core.engines import kernels as module
from mstar_core.engines.attention import default_backend
from mstar_core.engines.attention.base import KVLayout
from mstar_core.engines.kernels import COMPILERS, compiled_kernels, current_kernels, use_kernels
from mstar_core.errors import ConfigurationError
from mstar_core.nn.linear import Linear
from mstar_core.nn.norm import RMSNorm
from mstar_core.nn.rotary import rotate

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C++ compiler")
both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
TOLERANCE = {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 1e-2, "rtol": 1e-2}}


@pytest.fixture
def kernels():
    return compiled_kernels()


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@needs_compiler
@both
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 32), (100, 96), (780, 64), (5, 2), (256, 2048)])
def test_linear_when_rows_vary_then_each_row_is_exact_and_keeps_its_bits(kernels, dtype, outputs, inputs):
    weight = random(outputs, inputs, dtype=dtype) / inputs**0.5
    if not kernels.packs(weight):
        pytest.skip("this processor has no AVX-512")
    x, bias = random(20, inputs, dtype=dtype, seed=1), random(outputs, dtype=dtype, seed=2)
    packed = kernels.pack(weight)
    whole = kernels.linear(x, packed, outputs, bias)
    torch.testing.assert_close(
        whole, F.linear(x.double(), weight.double(), bias.double()).to(dtype), **TOLERANCE[dtype]
    )
    for rows in range(1, 20):
        assert torch.equal(kernels.linear(x[:rows], packed, outputs, bias), whole[:rows]), rows


@needs_compiler
@both
@pytest.mark.parametrize("width", [16, 50, 768])
def test_norm_and_gate_when_computed_then_equal_pytorch(kernels, dtype, width):
    x, weight = random(7, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    normed = F.rms_norm(x.double(), (width,), weight.double(), 1e-5).to(dtype)
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5), normed, **TOLERANCE[dtype])
    gate_up = 4 * random(7, 2 * width, dtype=dtype, seed=2)
    gate, up = gate_up.double().chunk(2, -1)
    torch.testing.assert_close(kernels.silu_multiply(gate_up), (F.silu(gate) * up).to(dtype), **TOLERANCE[dtype])


@needs_compiler
def test_gate_when_it_saturates_then_is_zero_or_the_product(kernels):
    gate_up = torch.tensor([[-200.0, 200.0, -88.0, 0.0, 1.0, 1.0, 1.0, 1.0]])
    assert kernels.silu_multiply(gate_up).tolist() == [[pytest.approx(0, abs=1e-30), 200.0, pytest.approx(0), 0.0]]


@needs_compiler
@both
@pytest.mark.parametrize("rotary", [8, 32, 64])
def test_rotation_when_in_place_then_equals_the_plain_one(kernels, dtype, rotary):
    fused = random(5, 6, 64, dtype=dtype)
    heads, rest = fused[:, :4], fused[:, 4:].clone()
    cos, sin = random(5, 1, rotary, dtype=dtype, seed=1), random(5, 1, rotary, dtype=dtype, seed=2)
    expected = rotate(heads[..., :rotary].clone(), cos, sin)
    kept = heads[..., rotary:].clone()
    kernels.rotate(heads, cos, sin)
    torch.testing.assert_close(heads[..., :rotary], expected, **TOLERANCE[dtype])
    assert torch.equal(heads[..., rotary:], kept)
    assert torch.equal(fused[:, 4:], rest)


@needs_compiler
def test_layers_when_built_under_kernels_then_adopt_them_and_agree_with_plain_ones():
    plain, norm = Linear(64, [32, 16]), RMSNorm(64, 1e-5)
    with use_kernels(compiled_kernels()):
        fast, fast_norm = Linear(64, [32, 16]), RMSNorm(64, 1e-5)
        for layer in (plain, fast):
            layer.weight.data = random(48, 64) / 8
        for layer in (norm, fast_norm):
            layer.weight.data = random(64)
        fast.pack()
    assert current_kernels() is None
    x = random(3, 64, seed=3)
    torch.testing.assert_close(fast(fast_norm(x)), plain(norm(x)))
    assert fast_norm(x).data_ptr() != x.data_ptr()


@needs_compiler
def test_kernels_when_dtypes_or_sizes_do_not_fit_then_refuse(kernels):
    x, weight = random(2, 64), random(64)
    with pytest.raises(TypeError, match=r"float32 on cpu beside torch\.bfloat16"):
        kernels.rms_norm(x, weight.bfloat16(), 1e-5)
    packed = kernels.pack(random(64, 32)) if kernels.block else torch.empty(1)
    with pytest.raises(ValueError, match="does not fit"):
        kernels.linear(x, packed, 64, None)


@pytest.mark.parametrize("wanted", [None, "no-such-compiler"])
def test_compiling_when_there_is_no_compiler_then_says_what_to_install(monkeypatch, wanted):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    if wanted:
        monkeypatch.setenv("CXX", wanted)
    with pytest.raises(ConfigurationError, match=r"needs a C\+\+ compiler.*apt install"):
        compiled_kernels.__wrapped__()


@needs_compiler
def test_compiling_when_the_compiler_fails_then_its_words_are_given(monkeypatch, tmp_path):
    broken = tmp_path / "kernels.cpp"
    broken.write_text("int main( {")
    monkeypatch.setattr(module, "_SOURCE", broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="could not compile"):
        compiled_kernels.__wrapped__()


@needs_compiler
def test_compiling_when_done_before_then_the_library_is_reused(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled_kernels.__wrapped__()
    (library,) = (tmp_path / "mstar").glob("*.so")
    made = library.stat().st_mtime_ns
    compiled_kernels.__wrapped__()
    assert library.stat().st_mtime_ns == made


@pytest.fixture
def pay():
    """`kernels_pay` without what it remembers."""
    return module.kernels_pay.__wrapped__


@needs_compiler
def test_kernels_pay_for_types_that_they_take_where_nothing_else_is_faster(monkeypatch, pay, kernels):
    monkeypatch.setattr(module, "_processor", lambda: "flags : avx512f avx512_bf16")
    assert pay(torch.float32) == pay(torch.bfloat16) == (kernels.block > 0)
    assert not pay(torch.float16)
    monkeypatch.setattr(module, "_processor", lambda: "flags : avx512f amx_tile amx_bf16")
    assert pay(torch.float32) == (kernels.block > 0)
    assert not pay(torch.bfloat16)


def test_kernels_do_not_pay_without_a_compiler_and_the_log_says_so(monkeypatch, pay, caplog):
    monkeypatch.setattr(module, "compiled_kernels", compiled_kernels.__wrapped__)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level("INFO"):
        assert not pay(torch.float32)
    assert "steps are not compiled: compiling needs a C++ compiler, and CXX=no-such-compiler" in caplog.text


def test_attention_is_compiled_where_the_kernels_take_the_heads():
    cpu, float32 = torch.device("cpu"), torch.float32
    fitting, odd = (KVLayout(layers=1, kv_heads=1, head_dim=size) for size in (32, 24))
    assert default_backend(fitting, cpu, float32, compiled=True) == "compiled"
    assert default_backend(fitting, cpu, float32) == default_backend(odd, cpu, float32, compiled=True) == "torch"
    assert default_backend(fitting, cpu, torch.float16, compiled=True) == "torch"
