"""Which plugins a process uses. The parent resolves the set once; a worker that sees another set refuses to start."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PluginSet:
    """The core's version, and each plugin in use as (name, version), sorted. Sent to workers as it is."""

    core: str
    plugins: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Sixteen hex digits that two processes compare; equal sets have equal digests."""
        return hashlib.sha256(repr((self.core, self.plugins)).encode()).hexdigest()[:16]

    def difference(self, other: PluginSet) -> str:
        """What `other` (the worker's set) has otherwise than this one (the parent's), a line each; empty if equal."""
        parent = {"mstar-core": self.core, **dict(self.plugins)}
        worker = {"mstar-core": other.core, **dict(other.plugins)}
        return "\n".join(
            f"{name}: {parent.get(name, 'absent')} in the parent, {worker.get(name, 'absent')} in the worker"
            for name in sorted(parent.keys() | worker.keys())
            if parent.get(name) != worker.get(name)
        )
