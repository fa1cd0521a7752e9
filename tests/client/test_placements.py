"""The scripted model in one process, placed in several ways: what it makes is always the same."""

import numpy as np
import pytest

from mstar_core import Engine
from mstar_core.errors import PlacementError
from mstar_core.spec.placement import parse_placement
from mstar_core.testing import scripted
from mstar_core.testing.plugins import registry_with

APART = """
workers: {reading: {}, writing: {}, speaking: {}}
groups:
  - {nodes: [reader, counter], worker: reading}
  - {nodes: [writer], worker: writing}
  - {nodes: [speaker], worker: speaking}
"""

REPLICAS = """
workers: {a: {}, b: {}}
groups: [{nodes: [reader, counter, writer, speaker], worker: [a, b]}]
"""


def made(text):
    with Engine("scripted", registry=registry_with(scripted), placement=parse_placement(text, "place.yaml")) as engine:
        return [engine.generate("hello", items=9, rounds=3, seed=seed) for seed in range(4)]


@pytest.mark.parametrize("placement", [APART, REPLICAS], ids=["apart", "replicas"])
def test_output_does_not_depend_on_the_placement(placement):
    for alone, placed in zip(made("{}"), made(placement), strict=True):
        np.testing.assert_array_equal(alone.audio.samples, placed.audio.samples)
        np.testing.assert_array_equal(alone.tensors["count"], placed.tensors["count"])
        assert (alone.finish_reason, alone.usage) == (placed.finish_reason, placed.usage)


def test_a_group_over_several_devices_is_refused_and_not_ignored():
    placement = parse_placement("groups: [{nodes: [writer], tp: 2}]", "place.yaml")
    with pytest.raises(PlacementError, match="tp"):
        Engine("scripted", registry=registry_with(scripted), placement=placement)
