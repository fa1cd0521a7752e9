"""What causal layers remember of a stream, as one tensor per stream.

A causal layer needs the last rows that it was given before, nothing else. `Memory` hands each layer what it kept and
collects what it keeps now, in the order in which the layers run; streams in one batch lie one beside the other.
"""

from __future__ import annotations

import torch


class Memory:
    """One pass of the layers over the next pieces of a batch of streams, all at their beginning or none.

    `before` is `[batch, numbers]`, what `after` gave for the pieces before; None where the streams begin.
    """

    def __init__(self, before: torch.Tensor | None) -> None:
        self.before = before
        self._read = 0
        self._kept: list[torch.Tensor] = []

    @property
    def begins(self) -> bool:
        """Whether these are the first pieces."""
        return self.before is None

    def padded(self, x: torch.Tensor, reach: int) -> torch.Tensor:
        """`[batch, channels, time]` behind its `reach` predecessors, which are zeros where the streams begin."""
        if self.before is None:
            return self._keep(torch.cat([x.new_zeros(*x.shape[:-1], reach), x], -1), reach)
        return self.behind(x, reach)

    def behind(self, x: torch.Tensor, reach: int) -> torch.Tensor:
        """`[batch, channels, time]` behind its `reach` predecessors, of which there are none where the streams begin.

        There `x` must have at least `reach` time steps.
        """
        if self.before is None:
            return self._keep(x, reach)
        batch, channels, _ = x.shape
        old = self.before[:, self._read : self._read + channels * reach].view(batch, channels, reach)
        self._read += channels * reach
        return self._keep(torch.cat([old, x], -1), reach)

    def rows(self, streams: slice) -> Memory:
        """The memory of some of the streams, read as far as this one; what it keeps is its own."""
        part = Memory(None if self.before is None else self.before[streams])
        part._read = self._read
        return part

    def join(self, parts: list[Memory]) -> None:
        """Take in what layers after this point kept in the memories of all streams, one by one."""
        self._kept.append(torch.cat([part.after() for part in parts]))

    def after(self) -> torch.Tensor:
        """What the next pieces need, `[batch, numbers]`."""
        return torch.cat([kept.flatten(1) for kept in self._kept], 1)

    def _keep(self, x: torch.Tensor, reach: int) -> torch.Tensor:
        self._kept.append(x[..., x.shape[-1] - reach :])
        return x
