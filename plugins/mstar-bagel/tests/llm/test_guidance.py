from types import SimpleNamespace

import pytest
import torch
from mstar_bagel.guidance import guide, guided, times
from mstar_bagel.painter import Guidance
from mstar_bagel.parameters import COMPARED

from mstar_core.engines.base import Call, NodeRequest

PARAMS = {
    "text_scale": 4.0,
    "img_scale": 2.0,
    "interval_start": 0.4,
    "interval_end": 1.0,
    "renorm": "global",
    "renorm_min": 0.0,
}


@pytest.fixture
def velocities():
    return torch.randn(3, 6, 64, generator=torch.Generator().manual_seed(0)).unbind()


def test_times_fall_from_one_to_zero_and_one_time_is_noise_alone():
    assert times(1, 3.0).tolist() == [1.0]
    assert times(2, 3.0).tolist() == [1.0, 0.0]
    assert (times(50, 3.0).diff() < 0).all()


@pytest.mark.parametrize(
    ("time", "params", "expected"),
    [
        (1.0, {}, True),
        (0.4, {}, False),
        (0.41, {}, True),
        (1.0, {"text_scale": 1.0}, False),
        (0.9, {"interval_end": 0.8}, False),
        (0.8, {"interval_end": 0.8}, True),
    ],
)
def test_the_interval_is_open_below_and_closed_above(time, params, expected):
    assert guided(torch.tensor(time).item(), PARAMS | params) is expected


def test_guidance_never_makes_a_velocity_longer(velocities):
    main = velocities[0]
    assert guide(*velocities, PARAMS).norm() <= main.norm() * 1.0001
    by_token = guide(*velocities, PARAMS | {"renorm": "channel"})
    assert (by_token.norm(dim=1) <= main.norm(dim=1) * 1.0001).all()


def test_without_renormalisation_guidance_is_the_plain_extrapolation(velocities):
    main, text, image = velocities
    plain = text + 4.0 * (main - text)
    torch.testing.assert_close(guide(*velocities, PARAMS | {"renorm_min": 1.0}), image + 2.0 * (plain - image))


def test_with_one_scale_pictures_do_not_matter_and_both_renorms_by_token_agree(velocities):
    main, text, image = velocities
    by = [guide(main, text, image, PARAMS | {"img_scale": 1.0, "renorm": each}) for each in ("channel", "text_channel")]
    torch.testing.assert_close(*by)
    torch.testing.assert_close(by[0], guide(main, text, 0 * image, PARAMS | {"img_scale": 1.0, "renorm": "channel"}))


@pytest.mark.parametrize("branch", ["text", "image"])
def test_a_velocity_that_guidance_compares_with_must_not_be_missing(velocities, branch):
    """Without it the picture would look as if nothing had been asked for, and nobody would know why."""
    main, text, image = velocities
    given = {"velocity": main, "velocity_text": text, "apart_image": image, "latents": main}
    ports = ("noise", "velocity_image", "apart_text", *given)
    params = {**PARAMS, "steps": 5, "timestep_shift": 3.0, COMPARED: ["text", "image"]}
    call = Call(NodeRequest(1, params, seed=0), "image_gen", {port: given.get(port) for port in ports}, step=1)
    node = Guidance(SimpleNamespace(config=None, device=torch.device("cpu")))
    (made,) = node.forward([call])
    assert made["progress"].tolist() == [1, 4]
    call.inputs.pop({"text": "velocity_text", "image": "apart_image"}[branch])
    with pytest.raises(RuntimeError, match=f"the context without {branch} is missing"):
        node.forward([Call(call.request, call.walk, {port: call.inputs.get(port) for port in ports}, step=1)])
