import pytest
import torch
from mstar_qwen_omni.encoders import nodes

CLOSE = {"atol": 2e-5, "rtol": 0}


@pytest.mark.parametrize("grid", [(1, 2, 2), (1, 4, 6), (3, 4, 4), (2, 10, 2)])
def test_a_square_of_patches_gives_a_row_and_one_for_each_level(vision, encode, sight, grid):
    (made,) = encode(vision, sight(*grid))
    rows = grid[0] * grid[1] * grid[2] // 4
    assert made["seen"].shape == (rows, 64)
    assert made["deep"].shape == (3, rows, 64)
    assert made["seen"].dtype == made["deep"].dtype == torch.float32


def test_a_picture_is_seen_alike_whatever_is_seen_beside_it(vision, encode, sight):
    sights = [sight(*grid, seed=place) for place, grid in enumerate([(1, 4, 6), (2, 4, 4), (1, 6, 4), (1, 20, 2)])]
    for together, each in zip(encode(vision, *sights), sights, strict=True):
        (alone,) = encode(vision, each)
        for port in ("seen", "deep"):
            assert torch.equal(together[port], alone[port])


def test_frames_attend_only_within_themselves(vision, encode, sight):
    first, second = sight(3, 4, 4), sight(3, 4, 4)
    second["pictures"] = second["pictures"].clone()
    second["pictures"][16:32] = 0  # the frame in the middle
    rows = [made["seen"].view(3, 4, -1) for made in encode(vision, first, second)]
    torch.testing.assert_close(rows[0][::2], rows[1][::2], **CLOSE)
    assert (rows[0][1] - rows[1][1]).abs().max() > 1e-3


def test_the_same_patches_on_other_grids_are_seen_otherwise(vision, encode, sight):
    wide, tall = sight(1, 4, 6), sight(1, 6, 4)
    rows = [made["seen"] for made in encode(vision, wide, tall)]
    assert (rows[0] - rows[1]).abs().max() > 1e-3


def test_pictures_that_are_too_many_to_see_at_once_are_seen_in_turns(vision, encode, sight, monkeypatch):
    sights = [sight(1, 4, 4, seed=place) for place in range(5)]
    together = encode(vision, *sights)
    monkeypatch.setattr(nodes, "_PATCHES_TOGETHER", 40)
    for wanted, made in zip(together, encode(vision, *sights), strict=True):
        assert torch.equal(wanted["seen"], made["seen"])
        assert torch.equal(wanted["deep"], made["deep"])
