"""The talker with compiled kernels, in recorded steps, and in bfloat16."""

from __future__ import annotations

import shutil

import pytest
import torch

from mstar_core.engines.kernels import COMPILERS
from mstar_core.engines.static_steps import run_again

NAMES = ("text", "text_reppen", "text_eos", "image", "mixed")
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C++ compiler")


def codes(speech, frames):
    return torch.stack(speech.codes[:frames], 1)


@needs_compiler
def test_codes_when_kernels_are_compiled_then_are_the_recorded_ones_alone_and_together(spoken, talking_as):
    talking = talking_as(compile=True)
    cases = [spoken(name) for name in NAMES]
    together = talking.speak([case.script() for case in cases])
    for case, speech in zip(cases, together, strict=True):
        (alone,) = talking.speak([case.script()])
        assert torch.equal(codes(speech, case["codes"].shape[1]), case["codes"])
        assert torch.equal(torch.stack(alone.feedback), torch.stack(speech.feedback))


def test_codes_when_steps_are_replayed_then_are_the_recorded_ones(spoken, talking_as):
    talking = talking_as(capture=run_again)
    cases = [spoken(name) for name in NAMES]
    for case, speech in zip(cases, talking.speak([case.script() for case in cases]), strict=True):
        assert torch.equal(codes(speech, case["codes"].shape[1]), case["codes"])
    assert talking.engine.runner.recorded


def test_codes_when_computed_in_bfloat16_then_are_codes_and_the_same_in_a_batch(spoken, talking_as):
    talking = talking_as(dtype=torch.bfloat16)
    scripts = [spoken(name).script() for name in NAMES]
    for script, speech in zip(scripts, talking.speak(scripts), strict=True):
        (alone,) = talking.speak([script])
        made = torch.stack(speech.codes)
        assert torch.equal(made, torch.stack(alone.codes))
        assert made.min() >= 0
        assert made.max() < 64
