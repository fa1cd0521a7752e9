"""How speech is cut. Torch-free."""

from __future__ import annotations

from mstar_core.spec.chunks import GrowingContextChunkPolicy

CHUNKS = GrowingContextChunkPolicy((1, 1, 2, 4, 8, 16, 25), 0)
"""New frames of each chunk: the first is heard at once, and each is at most as long as all that was heard before it, so
that nothing stalls if frames come twice as fast as they are played. No chunk needs context. The longest is vllm-omni's
for this model; by then longer ones save nothing."""

COMPAT_CHUNK = 300
COMPAT_CONTEXT = 25
"""Frames of the reference's `chunked_decode` by default (`Qwen3OmniMoeCode2Wav`)."""
