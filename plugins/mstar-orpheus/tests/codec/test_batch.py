import pytest
import torch
from mstar_orpheus.codec.chunks import COMPAT_CONTEXT, context_frames
from mstar_orpheus.codec.reach import Rows
from mstar_orpheus.codec.stream import Chunk, decode_compat, decode_exact, decode_windows


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def wide(make_decoder):
    """Wide enough for several tiles a layer and for the matrix kernels of the real sizes."""
    return make_decoder(encoder_dim=12, decoder_dim=256, codebook_size=64)


def random_codes(config, batch, frames):
    shape = (batch, frames, config.ids_per_frame)
    return torch.randint(0, config.codebook_size, shape, generator=torch.manual_seed(batch * 100 + frames))


@pytest.mark.parametrize("batch", [1, 2, 3, 8, 16])
@pytest.mark.parametrize(("frames", "samples"), [(1, None), (3, Rows(0, 1387)), (4, Rows(2048, 4096)), (7, None)])
def test_window_in_a_batch_is_the_same_bits_as_alone(small, batch, frames, samples):
    check_rows(small, batch, frames, samples)


@pytest.mark.parametrize(("batch", "frames", "samples"), [(3, 13, Rows(5483, 21867)), (8, 4, Rows(2048, 4096))])
def test_wide_window_in_a_batch_is_the_same_bits_as_alone(wide, batch, frames, samples):
    check_rows(wide, batch, frames, samples)


@pytest.mark.usefixtures("two_threads")
def test_window_in_a_batch_on_two_threads_is_the_same_bits_as_alone(wide):
    check_rows(wide, 3, 4, Rows(2048, 4096))


def check_rows(decoder, batch, frames, samples):
    codes = random_codes(decoder.config, batch, frames)
    positions, seeds = [3 * row for row in range(batch)], [100 + row for row in range(batch)]
    together = decode_windows(decoder, codes, positions, seeds, samples)
    for row in range(batch):
        alone = decode_windows(decoder, codes[row : row + 1], [positions[row]], [seeds[row]], samples)
        assert torch.equal(together[row], alone[0])


@pytest.mark.parametrize(
    ("decode", "left"), [(decode_exact, context_frames), (decode_compat, lambda _: COMPAT_CONTEXT)]
)
def test_chunks_of_many_requests_are_the_same_bits_as_alone(small, decode, left):
    context = left(small.config)
    codes = random_codes(small.config, 6, 20)
    shapes = [(0, 0, 3, False), (4, context, 9, False), (7, context, 9, False), (2, context, context, True)]
    chunks = [
        Chunk(codes=codes[index, :frames], position=position, context=start, final=final, seed=seed)
        for index, seed in enumerate([None, 5, 6])
        for position, start, frames, final in shapes
    ]
    together = decode(small, chunks)
    for chunk, samples in zip(chunks, together, strict=True):
        assert torch.equal(decode(small, [chunk])[0], samples)
