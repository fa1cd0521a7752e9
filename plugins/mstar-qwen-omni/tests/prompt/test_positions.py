from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mstar_qwen_omni.encoders.rows import rows_of
from mstar_qwen_omni.prompt import Film, Sound, Still, TextTokens, Turn, Words, lay_out

transformers = pytest.importorskip("transformers")

PER_SECOND = 13
SECONDS = [0.5, 1.0, 2.0, 2 / 3, 0.25, 3.7]
FRAMES = st.integers(1, 700)


@pytest.fixture(scope="module")
def tokens(fixture_dir):
    return TextTokens(fixture_dir)


@pytest.fixture(scope="module")
def reference(config):
    """`get_rope_index` of the reference, for a list of turns, their ids, and mel frames of their sounds."""
    module = pytest.importorskip("transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe")
    model = module.Qwen3OmniMoePreTrainedModelForConditionalGeneration
    special = config.ids
    stand_in = SimpleNamespace(
        spatial_merge_size=2,
        config=SimpleNamespace(
            image_token_id=special.image,
            video_token_id=special.video,
            audio_token_id=special.audio,
            vision_start_token_id=special.vision_start,
            audio_start_token_id=special.audio_start,
            position_id_per_seconds=PER_SECOND,
            audio_config=SimpleNamespace(n_window=50),
        ),
    )
    stand_in.get_llm_pos_ids_for_vision = model.get_llm_pos_ids_for_vision.__get__(stand_in)

    def positions(ids, pieces, frames, heard_with_clips):
        images = [[1, 2 * each.rows, 2 * each.columns] for each in pieces if isinstance(each, Still)]
        films = [each for each in pieces if isinstance(each, Film)]
        videos = [[each.steps, 2 * each.rows, 2 * each.columns] for each in films]
        made = model.get_rope_index(
            stand_in,
            torch.tensor(ids)[None],
            torch.tensor(images) if images else None,
            torch.tensor(videos) if videos else None,
            torch.ones(1, len(ids), dtype=torch.int64),
            heard_with_clips,
            torch.tensor(frames),
            torch.tensor([each.seconds for each in films]),
        )
        return made[0][:, 0].numpy()

    return positions


stills = st.builds(Still, st.integers(1, 5), st.integers(1, 5))
films = st.builds(Film, st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.sampled_from(SECONDS))
words = st.sampled_from(["a", "and then\n", "what is it?"]).map(Words)


def _conversation(pieces, tokens, config):
    return lay_out([Turn("system", (Words("Hm."),)), Turn("user", tuple(pieces))], tokens, config.ids, PER_SECOND)


@settings(max_examples=150, deadline=None)
@given(drawn=st.lists(st.one_of(words, stills, films, FRAMES), min_size=1, max_size=7), shown=stills)
def test_positions_are_the_references_whatever_the_order(drawn, shown, reference, tokens, config):
    frames = [each for each in drawn if isinstance(each, int)]
    pieces = [Sound(rows_of(each, 100)) if isinstance(each, int) else each for each in [*drawn, shown]]
    prompt = _conversation(pieces, tokens, config)
    wanted = reference(prompt.ids, pieces, frames, False)
    np.testing.assert_allclose(prompt.positions, wanted, rtol=1e-6)


@settings(max_examples=150, deadline=None)
@given(drawn=st.lists(st.tuples(films, FRAMES), min_size=1, max_size=3), between=st.lists(st.one_of(words, stills)))
def test_positions_of_clips_with_their_sound_are_the_references(drawn, between, reference, tokens, config):
    heard = [Film(film.steps, film.rows, film.columns, film.seconds, rows_of(frames, 100)) for film, frames in drawn]
    pieces = [each for pair in zip(heard, [*between, *[Words("x")] * len(heard)], strict=False) for each in pair]
    prompt = _conversation(pieces, tokens, config)
    wanted = reference(prompt.ids, pieces, [frames for _, frames in drawn], True)
    np.testing.assert_allclose(prompt.positions, wanted, rtol=1e-6)


def test_positions_of_sounds_alone_count_up(tokens, config):
    positions = _conversation([Sound(7), Words("x"), Sound(3)], tokens, config).positions
    np.testing.assert_array_equal(positions, np.tile(np.arange(positions.shape[1], dtype=np.float32), (3, 1)))
    assert positions.dtype == np.float32


def test_pictures_come_before_the_sound_of_the_same_time(tokens, config):
    ids = _conversation([Film(2, 1, 1, 2 / PER_SECOND, sound=4)], tokens, config).ids.tolist()
    start = ids.index(config.ids.audio_start) + 1
    video, audio = config.ids.video, config.ids.audio
    assert ids[start : start + 6] == [video, audio, audio, video, audio, audio]
