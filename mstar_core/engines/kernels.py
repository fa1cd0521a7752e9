"""CPU kernels that are compiled on the machine they run on, for nodes placed with `compile: true`.

`kernels.cpp` is compiled once per machine with the system's C++ compiler and kept in the user's cache directory; it
needs no PyTorch headers and takes seconds. While a node is built under `use_kernels`, the layers of `nn/` and the
engine's attention adopt the kernels; nothing else changes for the node. A linear layer reads its weights at the speed
of memory up to some ten rows (decoding), and is as fast as oneDNN's with hundreds, but for bfloat16 on a CPU with AMX.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch

from mstar_core.errors import ConfigurationError

_log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("kernels.cpp")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno")
COMPILERS = ("c++", "g++", "clang++")
"""Tried in this order unless `CXX` names one."""

_SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_LANES = 16

_POINTER, _LONG, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_SIGNATURES = {
    "pack": (_POINTER, _POINTER, _LONG, _LONG),
    "linear": (*[_POINTER] * 4, *[_LONG] * 3, _INT),
    "rms_norm": (*[_POINTER] * 3, *[_LONG] * 3, _FLOAT, _INT),
    "silu_multiply": (*[_POINTER] * 2, *[_LONG] * 2, _INT),
    "rotate": (*[_POINTER] * 3, *[_LONG] * 5, _INT),
    "paged_decode": (_POINTER, _LONG, *[_POINTER] * 2, _LONG, *[_POINTER] * 6, *[_LONG] * 6, _FLOAT, _INT),
}


class Kernels:
    """The compiled functions, on CPU tensors of float32 or bfloat16.

    A row's result has the same bits whatever the other rows are and however many threads work.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        library.mstar_block.restype = _LONG
        self.block: int = library.mstar_block()
        self._functions = {dtype: _functions(library, suffix) for dtype, suffix in _SUFFIXES.items()}

    def packs(self, weight: torch.Tensor) -> bool:
        """Whether `linear` is worth using for a weight `[outputs, inputs]` on this machine."""
        return self.block > 0 and weight.device.type == "cpu" and weight.dtype in _SUFFIXES and weight.shape[1] % 2 == 0

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight in the order in which `linear` reads it."""
        outputs, inputs = weight.shape
        packed = torch.empty(-(-outputs // self.block) * self.block * inputs, dtype=weight.dtype)
        source = weight.detach().contiguous()
        self._functions[weight.dtype]["pack"](source.data_ptr(), packed.data_ptr(), inputs, outputs)
        return packed

    def linear(self, x: torch.Tensor, packed: torch.Tensor, outputs: int, bias: torch.Tensor | None) -> torch.Tensor:
        """`[rows, outputs]` from `x` `[rows, inputs]` and a weight from `pack`."""
        _check_dtypes(x, packed)
        x = x.contiguous()
        rows, inputs = x.shape
        if -(-outputs // self.block) * self.block * inputs != packed.numel():
            raise ValueError(f"an input of {inputs} does not fit this packed weight of {outputs} outputs")
        y = torch.empty(rows, outputs, dtype=x.dtype)
        self._functions[x.dtype]["linear"](
            x.data_ptr(),
            packed.data_ptr(),
            None if bias is None else bias.data_ptr(),
            y.data_ptr(),
            rows,
            inputs,
            outputs,
            torch.get_num_threads(),
        )
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`x / sqrt(mean(x ** 2) + eps) * weight` over the last axis of `[..., width]`."""
        _check_dtypes(x, weight)
        x = x.contiguous()
        y = torch.empty_like(x)
        width = x.shape[-1]
        rows = x.numel() // width
        self._functions[x.dtype]["rms_norm"](
            x.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, width, width, eps, torch.get_num_threads()
        )
        return y

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * up` `[rows, width]` from both side by side, `[rows, 2 * width]`."""
        gate_up = gate_up.contiguous()
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        y = torch.empty(rows, width, dtype=gate_up.dtype)
        self._functions[y.dtype]["silu_multiply"](
            gate_up.data_ptr(), y.data_ptr(), rows, width, torch.get_num_threads()
        )
        return y

    def rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate `[tokens, heads, head_dim]` in place by `cos` and signed `sin` `[tokens, 1, rotary_dim]`."""
        _check_dtypes(heads, cos)
        tokens, count, head_dim = heads.shape
        assert heads.stride()[1:] == (head_dim, 1), "the heads of a token must lie together"
        self._functions[heads.dtype]["rotate"](
            heads.data_ptr(),
            cos.contiguous().data_ptr(),
            sin.contiguous().data_ptr(),
            tokens,
            count,
            heads.stride(0),
            head_dim,
            cos.shape[-1],
            torch.get_num_threads(),
        )
        return heads

    def paged_decode(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: torch.Tensor,
        slots: torch.Tensor | None,
        pages: torch.Tensor,
        lengths: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Attention of one token per request, `[requests, heads, head_dim]`, over `lengths` cached tokens each.

        `cache` is `[2, pages, page_size, kv_heads, head_dim]`, `pages` `[requests, columns]` int64. The new keys and
        values `[requests, kv_heads, head_dim]` are written to `slots` first; None says that they are there already.
        """
        _check_dtypes(queries, cache)
        requests, heads, head_dim = queries.shape
        _, _, page_size, kv_heads, _ = cache.shape
        out = torch.empty(requests, heads, head_dim, dtype=queries.dtype)
        new_stride, *within = keys.stride()
        assert values.stride() == (new_stride, *within), "keys and values must lie alike"
        assert within == [head_dim, 1] == [*queries.stride()[1:]], "the heads of a token must lie together"
        cached_keys = cache.data_ptr()
        self._functions[queries.dtype]["paged_decode"](
            queries.data_ptr(),
            queries.stride(0),
            keys.data_ptr(),
            values.data_ptr(),
            new_stride,
            cached_keys,
            cached_keys + cache.stride(0) * cache.itemsize,
            out.data_ptr(),
            None if slots is None else slots.data_ptr(),
            pages.data_ptr(),
            lengths.data_ptr(),
            requests,
            pages.shape[1],
            page_size,
            heads,
            kv_heads,
            head_dim,
            scale,
            torch.get_num_threads(),
        )
        return out


def _check_dtypes(x: torch.Tensor, other: torch.Tensor) -> None:
    """The functions see bare memory: what PyTorch would refuse has to be refused here."""
    if x.dtype != other.dtype or x.device.type != "cpu":
        raise TypeError(f"compiled kernels got {x.dtype} on {x.device} beside {other.dtype} on the CPU")


def attends(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether `paged_decode` takes such keys."""
    return dtype in _SUFFIXES and head_dim % _LANES == 0


_CURRENT: ContextVar[Kernels | None] = ContextVar("mstar_cpu_kernels", default=None)


@contextmanager
def use_kernels(kernels: Kernels | None) -> Iterator[None]:
    """Layers and engines built inside adopt the kernels (None: PyTorch's own)."""
    token = _CURRENT.set(kernels)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_kernels() -> Kernels | None:
    """The kernels that what is being built should adopt."""
    return _CURRENT.get()


@functools.cache
def compiled_kernels() -> Kernels:
    """Compile, or find compiled, and load. Raises `ConfigurationError` when there is no compiler or it fails."""
    compiler = _compiler()
    library = _cache_directory() / f"kernels-{_fingerprint(compiler)}.so"
    if not library.exists():
        _log.info("compiling kernels, once for this machine: %s", library)
        _compile(compiler, library)
    return Kernels(ctypes.CDLL(str(library)))


@functools.cache
def kernels_pay(dtype: torch.dtype) -> bool:
    """Whether the kernels make steps of this type faster here and never slower; compiles them to find out.

    Matrix units for bfloat16 (AMX), which the kernels leave alone, make large products faster than they are.
    """
    if dtype not in _SUFFIXES or (dtype == torch.bfloat16 and "amx_bf16" in _processor()):
        return False
    try:
        return compiled_kernels().block > 0
    except (ConfigurationError, OSError, RuntimeError) as error:  # nowhere to keep them, no home among others
        _log.info("steps are not compiled: %s", error)
        return False


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    found = shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        looked = f"CXX={wanted}" if wanted else ", ".join(COMPILERS)
        raise ConfigurationError(
            f"compiling needs a C++ compiler, and {looked} is not on the PATH; "
            "install one (apt install g++) or leave compile off"
        )
    return found


def _compile(compiler: str, library: Path) -> None:
    """Compile to a temporary file and rename it, so that processes that start together do not read half a library."""
    library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / library.name
        run = subprocess.run(
            [compiler, *_FLAGS, str(_SOURCE), "-o", str(made)], capture_output=True, text=True, check=False
        )
        if run.returncode:
            raise ConfigurationError(f"{compiler} could not compile {_SOURCE}:\n{run.stderr.strip()}")
        made.replace(library)


def _fingerprint(compiler: str) -> str:
    """Changes with the source, the flags, the compiler and the processor."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    parts = (_SOURCE.read_text(), " ".join(_FLAGS), version, _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """What the processor can do, as Linux lists it; elsewhere its name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else [platform.processor()]
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mstar"


def _functions(library: ctypes.CDLL, suffix: str) -> dict[str, ctypes._NamedFuncPointer]:
    functions = {}
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, f"mstar_{name}_{suffix}")
        function.argtypes, function.restype = arguments, None
        functions[name] = function
    return functions
