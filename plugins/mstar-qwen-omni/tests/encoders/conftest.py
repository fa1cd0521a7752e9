import pytest
import torch
from mstar_qwen_omni.encoders.nodes import AudioEncoder, VisionEncoder

from mstar_core.engines.base import BatchLimits, Call, NodeRequest
from mstar_core.engines.stateless import StatelessEngine

_LIMITS = BatchLimits()


@pytest.fixture(scope="session")
def audio(context, fixture_dir):
    return AudioEncoder(context(fixture_dir))


@pytest.fixture(scope="session")
def vision(context, fixture_dir):
    return VisionEncoder(context(fixture_dir))


@pytest.fixture(scope="session")
def encode():
    """What a node gives for several calls with inputs by port, run on its engine as far as it batches them."""

    def encoding(node, *inputs):
        engine = StatelessEngine(node)
        waiting = [Call(NodeRequest(key, {}, 0), "walk", each, 0) for key, each in enumerate(inputs)]
        outputs = {}
        while waiting:
            batch = engine.collect("walk", waiting, _LIMITS)
            engine.run(batch)
            for call, made in zip(batch.calls, engine.finish(batch), strict=True):
                outputs[call.request.key] = made
            waiting = [call for call in waiting if call not in batch.calls]
        return [outputs[key] for key in range(len(inputs))]

    return encoding


@pytest.fixture
def sound():
    """Mel features of so many frames with the width that they are padded to."""

    def making(frames, width=None, seed=0):
        generator = torch.Generator().manual_seed(seed)
        features = torch.rand(128, frames, generator=generator)
        return {"clips": features, "widths": torch.tensor(width or min(frames, 100))}

    return making


@pytest.fixture
def sight():
    """Patches of a picture or clip."""

    def making(steps, rows, columns, seed=0):
        generator = torch.Generator().manual_seed(seed)
        patches = torch.randint(0, 256, (steps * rows * columns, 1536), dtype=torch.uint8, generator=generator)
        return {"pictures": patches, "grids": torch.tensor([steps, rows, columns])}

    return making
