"""Orpheus placed in every way that a file of `placements/` shows: the sound of a seed is the same, bit for bit."""

import time
from pathlib import Path

import numpy as np
import pytest

from mstar_core import env
from mstar_core.client.service import Service
from mstar_core.errors import Cancelled
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.plugins.registry import load_registry
from mstar_core.spec.content import Text
from mstar_core.spec.placement import Placement, WorkerPlace, check_placement, load_placement

FILES = sorted((Path(__file__).parents[2] / "placements").glob("*.yaml"))
PATIENCE_S = 20.0
PAGE = 16
"""The page size of the files."""

LONG = " ".join(f"This is sentence number {number}, and it goes on." for number in range(20))

TEXTS = {"Hey": PAGE - 1, "Hey.": PAGE, "Hello": PAGE + 1, "Three pages of a prompt are written.": 3 * PAGE, LONG: None}
"""What is said, and how many ids its prompt has; the last one is cut into several prompts."""

HELD = ("mstar_requests_open", "mstar_worker_requests", "mstar_tensors_published", "mstar_kv_pages_used")


def on_this_cpu(placement):
    """The placement with one thread for each of its workers, wherever it is tested."""
    return placement.model_copy(
        update={"workers": dict.fromkeys(placement.workers, WorkerPlace(device="cpu", threads=1))}
    )


def said(ticket):
    """The samples, and why they end."""
    pieces = [content.samples for content in ticket]
    return np.concatenate(pieces).tobytes(), ticket.end.reason, ticket.end.usage


def submitted(service, text, seed):
    return service.submit("orpheus", [Text(text)], {"seed": seed, "max_tokens": 30})


def metric(service, *names, **labels):
    samples = [each for each in service.metrics() if each.name in names]
    return sum(each.value for each in samples if labels.items() <= each.labels.items())


def at_rest(service):
    deadline = time.monotonic() + PATIENCE_S
    while metric(service, *HELD) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not metric(service, *HELD)


@pytest.fixture(scope="module")
def installed():
    """Only this plugin, as the processes of a server find it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(env.PLUGINS.name, "mstar-orpheus")
        yield load_registry()


@pytest.fixture(scope="module")
def expected(installed):
    """What one worker in this process says, one text after the other."""
    with Service.start(["orpheus"], registry=installed, placement=on_this_cpu(Placement())) as service:
        return [said(submitted(service, text, seed)) for seed, text in enumerate(TEXTS)]


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.stem)
def service(request, installed):
    """A server of processes."""
    placement = on_this_cpu(load_placement(request.param))
    with Service.start(["orpheus"], registry=installed, placement=placement, processes=True) as service:
        yield service
        assert at_rest(service)
        assert metric(service, "mstar_restarts") == 0


def test_there_are_files():
    assert {file.stem for file in FILES} >= {"one-worker", "codec-apart", "prefill-apart", "two-replicas"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_fits_the_model(file, installed):
    spec = assemble(installed, "orpheus", locate(installed.card("orpheus"), None))
    placement = load_placement(file)
    check_placement(placement, [spec])
    assert all(group.kv.page == PAGE for group in placement.groups)


def test_the_texts_have_prompts_around_a_page(installed):
    directory = locate(installed.card("orpheus"), None)
    spec = assemble(installed, "orpheus", directory)
    processor = installed.owner("orpheus").processor(spec.card, spec.config, directory)
    for text, length in TEXTS.items():
        prompts = processor.prepare([Text(text)], {"voice": "tara", "max_tokens": 30}).inputs["prompt"]
        assert [len(prompt) for prompt in prompts] == [length] if length else len(prompts) > 2


def test_a_text_alone_sounds_as_from_one_worker(service, expected):
    assert [said(submitted(service, text, seed)) for seed, text in enumerate(TEXTS)] == expected


def test_texts_at_the_same_time_sound_as_from_one_worker(service, expected):
    tickets = [submitted(service, text, seed) for seed, text in enumerate(TEXTS)]
    assert [said(ticket) for ticket in tickets] == expected


def test_a_speech_that_is_aborted_is_free_on_every_worker(service):
    tickets = [service.submit("orpheus", [Text(LONG)], {"seed": seed, "max_tokens": 300}) for seed in range(4)]
    for ticket in tickets:
        contents = iter(ticket)
        next(contents)
        ticket.cancel()
        with pytest.raises(Cancelled):
            list(contents)
    assert at_rest(service)
    assert metric(service, "mstar_restarts") == 0


def test_every_worker_has_had_its_part(service):
    calls = {name: metric(service, "mstar_batch_calls", worker=name) for name in service.workers}
    assert all(calls.values()), calls
