"""A transport that a plugin brings carries the tensors of a server's processes, when the placement names it."""

import re

import httpx
import numpy as np
import pytest

from mstar_core.media.pcm import to_pcm
from mstar_core.testing.scripted import ITEM_SAMPLES, sample_of
from mstar_core.testing.serving import SCRIPTED, serving

FILES = '''
import itertools
from pathlib import Path

import numpy as np

from mstar_core import hookimpl
from mstar_core.wire.messages import TensorRef
from mstar_core.wire.transport import ArrayPayload, Transport, numpy_dtype

HERE = Path(__file__).parent


@hookimpl
def mstar_transports():
    return [("files", f"{__name__}:Files")]


class Files(Transport):
    """Every tensor is a file, which its receiver removes."""

    name = "files"

    def __init__(self, address):
        self.host, self.party = address.host, address.near.rpartition("/")[2]
        self.numbers = itertools.count(1)

    def reaches(self, receiver):
        return receiver.host == self.host

    def publish(self, payload, receiver):
        ref = TensorRef(
            payload.dtype, payload.shape, None, self.name, self.party, next(self.numbers), receiver is None
        )
        self.path(ref).write_bytes(payload.array().tobytes())
        return ref

    def path(self, ref):
        return HERE / f"{ref.place}-{ref.key}.tensor"

    def reachable(self, ref):
        return True

    def take(self, ref):
        data = bytearray(self.path(ref).read_bytes())
        self.release(ref)
        return ArrayPayload(np.ndarray(ref.shape, numpy_dtype(ref.dtype), data), ref.dtype)

    def release(self, ref):
        if not ref.held:
            self.drop(ref)

    def drop(self, ref):
        self.path(ref).unlink(missing_ok=True)

    def forget(self, receiver):
        pass

    def samples(self):
        return []

    def close(self):
        pass
'''

APART = """
workers: {first: {threads: 1}, second: {threads: 1}}
groups:
  - nodes: [speaker]
    worker: second
transports: [files]
"""


def test_a_plugins_transport_that_the_placement_names_carries_the_tensors(tmp_path):
    wanted = np.repeat(np.array([sample_of(1, 3, step) for step in range(20)], np.float32), ITEM_SAMPLES)
    fields = {"model": "scripted", "input": "Hello.", "response_format": "pcm", "items": 20, "seed": 3}
    with serving(tmp_path, placement=APART, source=SCRIPTED + FILES) as server:
        answer = httpx.post(f"{server.url}/v1/audio/speech", json=fields, timeout=60)
        assert answer.content == to_pcm(wanted).tobytes()
        counted = httpx.get(f"{server.url}/metrics").text
    assert set(re.findall(r'^mstar_tensors_sent_total{.*transport="(\w+)".* [1-9]', counted, re.M)) == {"files"}
    assert list(tmp_path.rglob("*.tensor")) == []


def test_a_transport_that_nobody_brings_is_refused_with_the_nearest(tmp_path):
    with (
        pytest.raises(AssertionError, match=r"unknown name 'fils' .did you mean 'files'"),
        serving(tmp_path, placement=APART.replace("files", "fils"), source=SCRIPTED + FILES),
    ):
        pass
