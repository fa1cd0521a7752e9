from pathlib import Path

import numpy as np
import pytest
import yaml

from mstar_core.client.engine import finished
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.spec.content import Image, Text
from mstar_core.spec.placement import Placement, check_placement, load_placement

PLACEMENTS = Path(__file__).parents[2] / "placements"

PICTURE = Image(np.random.default_rng(0).integers(0, 256, (90, 70, 3), np.uint8))
ASKED = {
    "a picture": ([Text("a red bicycle")], {"width": 64, "height": 96}),
    "an edit": ([PICTURE, Text("make it blue")], {}),
    "an edit with a thought": ([Text("look"), PICTURE, Text("make it blue")], {"think": True, "max_think_tokens": 9}),
}


@pytest.fixture(scope="module")
def apart(serve):
    """The bundled checkpoint with a CPU worker for every branch of guidance."""
    placed = yaml.safe_load((PLACEMENTS / "guidance-apart.yaml").read_text())
    for worker in placed["workers"].values():
        worker |= {"device": "cpu", "threads": 1}
    for group in placed["groups"]:
        group["dtype"] = "float32"
        if "kv" in group:
            group["kv"]["tokens"] = 4096
    with serve(placement=Placement(**placed)) as service:
        yield service


@pytest.mark.parametrize("path", sorted(PLACEMENTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_placements_that_ship_fit_the_model(registry, path):
    check_placement(load_placement(path), [assemble(registry, "bagel", locate(registry.card("bagel")))])


@pytest.mark.parametrize("name", ASKED)
def test_guidance_on_three_workers_makes_the_picture_that_one_makes(served, apart, name):
    content, params = ASKED[name]

    def made(service):
        ticket = service.submit("bagel", content, params | {"steps": 8, "seed": 1}, outputs=frozenset({"image"}))
        return finished(ticket, ticket).images[0].pixels

    assert np.array_equal(made(apart), made(served()))
