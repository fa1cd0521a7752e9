import json

import numpy as np
import pytest
from mstar_qwen_omni.encoders.rows import rows_of
from mstar_qwen_omni.processor import QwenOmniProcessor

from mstar_core.errors import CheckpointError, InvalidRequest
from mstar_core.spec.content import Audio, Image, Tensor, Text, Video

RATE = 16000


def sound(samples, rate=RATE, role="user"):
    return Audio(np.sin(np.arange(samples, dtype=np.float32) / 7), rate, role=role)


def image(height=64, width=96, role="user"):
    return Image(np.full((height, width, 3), 90, np.uint8), role=role)


def video(frames=4, rate=2.0, audio=None, size=(320, 448)):
    return Video(np.full((frames, *size, 3), 90, np.uint8), rate, audio)


def count(ids, id):
    return int((ids == id).sum())


def kinds(ids, special):
    """The order of media and text of a prompt, without the marks."""
    names = {special.audio: "sound", special.image: "image", special.video: "video"}
    found = [names.get(int(id), chr(id) if id < 128 else "") for id in ids]
    return [name for place, name in enumerate(found) if name and (not place or name != found[place - 1])]


def test_text_and_media_keep_the_clients_order(prepare, config):
    made = prepare(Text("a"), image(), Text("b"), sound(RATE), video(), Text("c"), image(96, 64), Text("d"))
    shown = kinds(made["ids"][0], config.ids)
    assert [each for each in shown if each in "abcd" or len(each) > 1][:8] == [
        *("a", "image", "b", "sound", "video", "c", "image", "d")
    ]
    assert [grid.tolist() for grid in made["grids"]] == [[1, 4, 6], [2, 20, 28], [1, 6, 4]]


def test_each_message_is_a_turn_also_where_one_follows_another_of_the_same_person(prepare):
    apart = prepare(Text("a"), Text("b", message=1))
    together = prepare(Text("a"), Text("b"))
    assert [len(made["turns"][0]) for made in (apart, together)] == [2, 1]


def test_there_is_a_pad_for_every_row_of_media(prepare, config):
    made = prepare(sound(RATE * 3 + 77), image(), video(), sound(4000))
    ids = made["ids"][0]
    rows = [rows_of(clip.shape[1], 100) for clip in made["clips"]]
    assert count(ids, config.ids.audio) == sum(rows)
    still, film = (grid.prod() // 4 for grid in made["grids"])
    assert count(ids, config.ids.image) == still
    assert count(ids, config.ids.video) == film
    assert [len(patches) for patches in made["pictures"]] == [4 * still, 4 * film]
    assert made["positions"][0].shape == (3, len(ids))
    assert made["positions"][0].dtype == np.float32


def test_inputs_of_media_are_missing_where_there_are_none(prepare):
    assert prepare(Text("hi")).keys() == {"ids", "positions", "turns"}


def test_a_conversation_has_a_turn_for_each_change_of_who_speaks(prepare, config):
    made = prepare(
        Text("Rule.", role="system"),
        Text("one "),
        image(),
        Text("two"),
        Text("answer", role="assistant"),
        sound(RATE),
        Text("three"),
    )
    ids, special = made["ids"][0], config.ids
    starts = np.flatnonzero(ids == special.im_start)
    roles = [special.system, special.user, special.assistant, special.user, special.assistant]
    assert ids[starts + 1].tolist() == roles
    assert made["turns"][0].tolist() == [[starts[1], starts[2]], [starts[3], starts[4]]]


def test_neighbouring_texts_are_read_as_one(prepare):
    apart, together = prepare(Text("He"), Text(""), Text("llo")), prepare(Text("Hello"))
    np.testing.assert_array_equal(apart["ids"][0], together["ids"][0])


def test_sound_of_another_rate_is_resampled(prepare):
    (clip,) = prepare(sound(48000, 48000))["clips"]
    assert clip.shape == (128, 100)


def test_the_sound_of_a_video_is_heard_only_where_that_is_asked_for(prepare, config):
    shown = video(4, 2.0, sound(RATE * 2))
    without, with_sound = prepare(shown, Text("?")), prepare(shown, Text("?"), use_audio_in_video=True)
    assert "clips" not in without
    ids = with_sound["ids"][0]
    assert count(ids, config.ids.audio) == rows_of(200, 100)
    start = ids.tolist().index(config.ids.vision_start)
    assert ids[start + 1] == config.ids.audio_start


def test_sounds_are_padded_as_the_request_says(prepare):
    shorter, longer = sound(8070), sound(RATE * 2)
    own = prepare(shorter, longer, Text("?"))
    compat = prepare(shorter, longer, Text("?"), audio_padding="compat")
    alone = prepare(shorter, Text("?"))
    np.testing.assert_array_equal(own["clips"][0], alone["clips"][0])
    assert [width.tolist() for width in own["widths"]] == [50, 100]
    assert [width.tolist() for width in compat["widths"]] == [100, 100]
    assert [clip.shape[1] for clip in own["clips"]] == [50, 200]
    assert [clip.shape[1] for clip in compat["clips"]] == [51, 200]  # the reference counts the hop that was begun


def test_frames_of_a_video_are_seen_at_the_wanted_rate(prepare):
    positions = {}
    for fps in (1.0, 4.0):
        made = prepare(video(48, 8.0), Text("?"), fps=fps)
        assert made["grids"][0][0] == 6 * fps / 2
        positions[fps] = np.unique(np.diff(np.unique(made["positions"][0][0])))
    assert 26.0 in positions[1.0]
    assert 6.5 in positions[4.0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([], "nothing from the user"),
        ([Text("   \n")], "nothing from the user"),
        ([Text("Rule.", role="system")], "nothing from the user"),
        ([Text("a\ud800b")], "half a character at position 1"),
        ([Tensor("x", np.zeros(3))], "holds tensor"),
        ([Audio(np.zeros(159, np.float32), RATE)], "9.9375 ms; at least 10 ms"),
        ([Audio(np.full(RATE, np.nan, np.float32), RATE)], "finite float32"),
        ([Image(np.zeros((2, 900, 3), np.uint8))], "too narrow"),
        ([Image(np.zeros((20, 20), np.uint8))], r"uint8 \[height, width, 3\]"),
        ([Video(np.zeros((4, 20, 20, 3), np.uint8), 0.0)], "0.0 frames a second"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_field(content, problem, prepare):
    with pytest.raises(InvalidRequest, match=problem) as raised:
        prepare(*content)
    assert raised.value.param == "input"


def test_a_prompt_that_leaves_too_little_room_is_refused_with_the_numbers(prepare, config):
    with pytest.raises(InvalidRequest, match=r"of 100 and a prompt of 4007 tokens .* at most 89") as raised:
        prepare(Text("x" * 3999), max_tokens=100)
    assert raised.value.param == "max_tokens"


def test_a_prompt_that_is_too_long_is_refused_before_its_media_are_made(prepare):
    with pytest.raises(InvalidRequest, match=r"comes to 10[0-9]{3} tokens; the model reads fewer than 4096") as raised:
        prepare(image(3200, 3200), Text("?"))
    assert raised.value.param == "input"


def test_media_that_do_not_fit_the_encoders_are_refused(fixture_dir, tmp_path, config):
    values = json.loads((fixture_dir / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**values, "patch_size": 14}))
    (tmp_path / "tokenizer.json").write_bytes((fixture_dir / "tokenizer.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"\(128, 14, 2, 2\).*\(128, 16, 2, 2\)"):
        QwenOmniProcessor(config, tmp_path)
