"""When an output port may feed an input port."""

from __future__ import annotations

from mstar_core.spec.graph import ANY, FLAG, Port


def clash(source: Port, target: Port) -> str | None:
    """Why `source` cannot feed `target`, or None when it can.

    `any` fits everything but a flag. Shapes fit when they have the same number of axes and no two numbers differ;
    symbols fit every size.
    """
    if source.dtype != target.dtype and (
        ANY not in (source.dtype, target.dtype) or FLAG in (source.dtype, target.dtype)
    ):
        return f"port {target.name!r} expects {target.dtype}, port {source.name!r} gives {source.dtype}"
    if source.shape is None or target.shape is None:
        return None
    sizes = zip(source.shape, target.shape, strict=False)
    fits = len(source.shape) == len(target.shape) and not any(
        isinstance(given, int) and isinstance(wanted, int) and given != wanted for given, wanted in sizes
    )
    if fits:
        return None
    wanted_shape, given_shape = _shown(target.shape), _shown(source.shape)
    return f"port {target.name!r} expects shape {wanted_shape}, port {source.name!r} gives {given_shape}"


def _shown(shape: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"
