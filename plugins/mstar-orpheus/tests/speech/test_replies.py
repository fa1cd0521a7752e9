import numpy as np
import pytest
import torch
from mstar_orpheus.codec.decoder import SnacDecoder
from mstar_orpheus.codec.stream import decode_windows

GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0, "noise": False}


def frames_of(count):
    return [[frame + 1] * 7 for frame in range(count)]


def whole(checkpoint, frames):
    with torch.inference_mode():
        return decode_windows(SnacDecoder.load(checkpoint / "snac"), torch.tensor([frames]), [0])[0].numpy()


def wrong_slot_ids(service):
    return next(sample.value for sample in service.metrics() if sample.name == "mstar_wrong_slot_ids")


@pytest.mark.parametrize("count", range(1, 7))
def test_a_short_reply_is_heard_to_its_last_sample(saying, ids_of, layout, serve, speak, count):
    checkpoint = saying([*ids_of(frames_of(count)), layout.ids.end_of_speech])
    with serve(checkpoint) as service:
        samples, reason = speak(service, "Hi.", **GREEDY)
    assert reason == "stop"
    np.testing.assert_allclose(samples, whole(checkpoint, frames_of(count)), atol=1e-4)


def test_codes_of_zero_in_any_slot_are_heard(saying, ids_of, layout, serve, speak):
    frames = frames_of(60)
    for slot in range(7):
        frames[8 * slot + 3][slot] = 0
    checkpoint = saying([*ids_of(frames), layout.ids.end_of_speech])
    with serve(checkpoint) as service:
        samples, _ = speak(service, "Zero.", **GREEDY)
    np.testing.assert_allclose(samples, whole(checkpoint, frames), atol=1e-4)


def test_what_follows_the_end_id_is_never_heard(saying, ids_of, layout, serve, speak):
    frames = frames_of(8)
    ids = ids_of(frames)
    with serve(saying([*ids[:21], layout.ids.end_of_speech, *ids[21:]])) as service:
        samples, reason = speak(service, "Stop.", **GREEDY)
    assert (len(samples), reason) == (3 * 2048, "stop")


def test_a_reply_that_is_at_its_end_at_once_is_empty_and_stops(saying, layout, serve, speak):
    with serve(saying([layout.ids.end_of_speech])) as service:
        samples, reason = speak(service, "Nothing.", **GREEDY)
    assert (len(samples), reason) == (0, "stop")


@pytest.mark.parametrize(("most", "heard"), [(1, 0), (7, 1), (20, 2), (21, 3), (70, 10)])
def test_a_capped_reply_says_length_and_gives_every_frame(saying, ids_of, layout, serve, speak, most, heard):
    checkpoint = saying([*ids_of(frames_of(20)), layout.ids.end_of_speech])
    with serve(checkpoint) as service:
        samples, reason = speak(service, "On and on.", max_tokens=most, **GREEDY)
    assert (len(samples), reason) == (heard * 2048, "length")


def test_the_end_in_place_of_the_first_id_too_many_is_a_stop(saying, ids_of, layout, serve, speak):
    checkpoint = saying([*ids_of(frames_of(2)), layout.ids.end_of_speech])
    with serve(checkpoint) as service:
        assert speak(service, "Just.", max_tokens=15, **GREEDY)[1] == "stop"
        assert speak(service, "Just.", max_tokens=14, **GREEDY)[1] == "length"


def test_a_wrong_slot_costs_one_frame_and_is_counted_when_the_mask_is_off(saying, ids_of, layout, serve, speak):
    frames = frames_of(9)
    ids = ids_of(frames)
    ids[4 * 7 + 3] = layout.ids.audio + 6 * 64 + 50
    checkpoint = saying([*ids, layout.ids.end_of_speech])
    with serve(checkpoint) as service:
        samples, reason = speak(service, "Slip.", slot_mask=False, **GREEDY)
        assert wrong_slot_ids(service) == 1
    assert reason == "stop"
    np.testing.assert_allclose(samples, whole(checkpoint, frames[:4] + frames[5:]), atol=1e-4)


def test_a_model_that_prefers_wrong_slots_speaks_whole_frames_under_the_mask(saying, layout, serve, speak):
    wrong = [layout.ids.audio + 3 * 64 + code for code in range(40)]
    with serve(saying(wrong)) as service:
        masked, _ = speak(service, "Slip.", max_tokens=28, temperature=1.0, seed=1)
        assert wrong_slot_ids(service) == 0
        free, _ = speak(service, "Slip.", max_tokens=28, temperature=1.0, seed=1, slot_mask=False)
    assert (len(masked), len(free)) == (4 * 2048, 0)


def test_segments_are_spoken_in_one_stream_and_half_a_frame_at_a_cut_is_dropped(saying, ids_of, layout, serve, speak):
    frames = frames_of(20)
    checkpoint = saying([*ids_of(frames), layout.ids.end_of_speech])
    text = " ".join(f"This is sentence number {number}, and it goes on." for number in range(20))
    with serve(checkpoint) as service:
        samples, reason = speak(service, text, max_tokens=17, **GREEDY)
        assert wrong_slot_ids(service) == 0
    said = len(samples) // (2 * 2048)
    assert said >= 3
    assert reason == "length"
    np.testing.assert_allclose(samples, whole(checkpoint, frames[:2] * said), atol=1e-4)


def test_a_segment_is_not_penalised_for_what_another_one_said(saying, ids_of, layout, serve, speak):
    favourite, start = ids_of([[1] * 7]), layout.ids.start_of_speech
    rival = layout.ids.audio + 40
    rivals = {(start, rival): 0.8, (rival, favourite[1]): 1.0}
    checkpoint = saying([*favourite, layout.ids.end_of_speech], rivals)
    text = " ".join(f"This is sentence number {number}, and it goes on." for number in range(20))
    with serve(checkpoint) as service:
        samples, _ = speak(service, text, **GREEDY | {"repetition_penalty": 1.3})
    said = len(samples) // 2048
    assert said >= 3
    np.testing.assert_allclose(samples, whole(checkpoint, [[1] * 7] * said), atol=1e-4)


def test_the_codecs_noise_follows_the_seed_and_can_be_left_out(saying, ids_of, layout, serve, speak):
    checkpoint = saying([*ids_of(frames_of(4)), layout.ids.end_of_speech])

    def noisy(**params):
        return speak(service, "Noise.", temperature=0.0, repetition_penalty=1.0, **params)[0]

    with serve(checkpoint) as service:
        first, again, other = noisy(seed=1), noisy(seed=1), noisy(seed=2)
        silent = noisy(seed=1, noise=False)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, silent)
    np.testing.assert_allclose(silent, whole(checkpoint, frames_of(4)), atol=1e-4)


def test_the_compat_mode_gives_the_official_loops_frames(saying, ids_of, layout, serve, speak):
    checkpoint = saying([*ids_of(frames_of(12)), layout.ids.end_of_speech])
    with serve(checkpoint) as service:
        samples, _ = speak(service, "As ever.", decode_mode="compat", **GREEDY)
    exact = whole(checkpoint, frames_of(12)[:4])
    assert len(samples) == (12 - 3) * 2048
    np.testing.assert_allclose(samples[:2048], exact[2048:4096], atol=1e-4)
