import torch

from mstar_core.nn.rotary import RotaryTable, SectionedRotary, interleaved_axes, rotate

CPU = torch.device("cpu")


def sectioned(head_dim=32, sections=(6, 5, 5)):
    return SectionedRotary(head_dim, 1e6, sections, device=CPU, dtype=torch.float32)


def test_axes_alternate_until_a_section_is_used_up():
    assert interleaved_axes((4, 2, 2)) == [0, 1, 2, 0, 1, 2, 0, 0]
    published = interleaved_axes((24, 20, 20))
    assert [published.count(axis) for axis in range(3)] == [24, 20, 20]
    assert published[60:] == [0, 0, 0, 0]


def test_equal_axes_are_the_plain_rotation():
    positions = torch.arange(40)
    table = RotaryTable(32, 1e6, 40, device=CPU, dtype=torch.float32)
    for found, plain in zip(sectioned().at(positions.float().expand(3, -1)), table.at(positions), strict=True):
        torch.testing.assert_close(found, plain, rtol=0, atol=1e-6)


def test_fractions_turn_between_whole_positions():
    x = torch.randn(1, 1, 32)
    half = sectioned().at(torch.full((3, 1), 0.5))
    torch.testing.assert_close(rotate(rotate(x, *half), *half), rotate(x, *sectioned().at(torch.ones(3, 1))))


def test_each_pair_turns_by_its_own_axis():
    cos, _ = sectioned(16, (4, 2, 2)).at(torch.tensor([[0.0], [3.0], [0.0]]))
    turned = (cos[0, 0, :8] != 1).nonzero().flatten().tolist()
    assert turned == [1, 4]


def test_a_token_has_the_same_bits_alone_and_beside_others():
    positions = torch.rand(3, 37) * 5000
    together = sectioned().at(positions)
    for token in range(37):
        alone = sectioned().at(positions[:, token : token + 1])
        assert all(torch.equal(one, all_[token : token + 1]) for one, all_ in zip(alone, together, strict=True))
