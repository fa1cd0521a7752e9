import pytest
from hypothesis import given
from hypothesis import strategies as st
from mstar_orpheus.codec.config import SnacConfig
from mstar_orpheus.codec.frames import FrameParser, frame_to_levels

BASE = 128266
FRAMES = 60
SLOTS = 7
CODES = 4096


@pytest.fixture(scope="module")
def config():
    return SnacConfig(
        sampling_rate=24000,
        encoder_dim=48,
        encoder_rates=(2, 4, 8, 8),
        decoder_dim=1024,
        decoder_rates=(8, 8, 4, 2),
        codebook_size=CODES,
        codebook_dim=8,
        vq_strides=(4, 2, 1),
    )


def frames_of(seed=1):
    return [tuple((seed + 131 * index + 977 * slot) % CODES for slot in range(SLOTS)) for index in range(FRAMES)]


def ids_of(frames):
    return [BASE + slot * CODES + code for frame in frames for slot, code in enumerate(frame)]


def parse(config, ids):
    parser = FrameParser(config, BASE)
    return parser.extend(ids), parser


def test_parser_of_a_clean_stream_gives_every_frame(config):
    frames = frames_of()
    parsed, parser = parse(config, ids_of(frames))
    assert parsed == frames
    assert (parser.frames, parser.violations, parser.pending) == (FRAMES, 0, 0)


def test_parser_gives_a_frame_with_its_last_id(config):
    parser = FrameParser(config, BASE)
    ids = ids_of(frames_of()[:1])
    assert [parser.push(audio_id) for audio_id in ids[:-1]] == [None] * 6
    assert parser.pending == 6
    assert parser.push(ids[-1]) == frames_of()[0]


@pytest.mark.parametrize("slot", range(SLOTS))
def test_parser_keeps_a_zero_code_in_any_slot(config, slot):
    frames = frames_of()
    frames[30] = tuple(0 if index == slot else code for index, code in enumerate(frames[30]))
    parsed, parser = parse(config, ids_of(frames))
    assert parsed == frames
    assert parser.violations == 0


@given(st.data())
def test_parser_loses_at_most_one_frame_to_one_wrong_missing_or_surplus_id(config, data):
    frames = frames_of(data.draw(st.integers(0, CODES - 1)))
    ids = ids_of(frames)
    place = data.draw(st.integers(0, len(ids) - 1))
    stray = [BASE + data.draw(st.integers(0, SLOTS * CODES - 1))]
    change = data.draw(st.sampled_from(["replace", "remove", "insert"]))
    kept = place if change == "insert" else place + 1
    broken = ids[:place] + ([] if change == "remove" else stray) + ids[kept:]
    parsed, parser = parse(config, broken)
    hurt = place // SLOTS
    whole = [frame for index, frame in enumerate(frames) if index != hurt]
    intact = [frame for frame in parsed if frame in whole]
    assert intact == whole
    assert len(parsed) <= FRAMES
    assert parser.violations <= 2


@given(st.integers(0, FRAMES * SLOTS), st.sampled_from([0, 50, 128258, BASE - 1, BASE + SLOTS * CODES, 156939, -1]))
def test_parser_skips_ids_outside_the_audio_range(config, place, special):
    ids = ids_of(frames_of())
    parsed, parser = parse(config, [*ids[:place], special, *ids[place:]])
    assert parsed == frames_of()
    assert parser.violations == 0


def test_parser_counts_one_slip_once_until_it_is_back_in_step(config):
    ids = ids_of(frames_of())
    parsed, parser = parse(config, ids[3:])
    assert parsed == frames_of()[1:]
    assert parser.violations == 1


@given(st.lists(st.integers(BASE - 3, BASE + SLOTS * CODES + 3), max_size=80))
def test_parser_of_any_ids_gives_only_legal_frames(config, ids):
    parsed, parser = parse(config, ids)
    assert all(len(frame) == SLOTS and min(frame) >= 0 and max(frame) < CODES for frame in parsed)
    assert parser.frames == len(parsed) <= len(ids) // SLOTS
    assert parser.pending < SLOTS


@given(st.lists(st.integers(BASE - 3, BASE + SLOTS * CODES + 3), max_size=80), st.integers(0, 80))
def test_parser_goes_on_where_another_one_was_packed(config, ids, place):
    parsed, parser = parse(config, ids)
    first_parsed, first = parse(config, ids[:place])
    second = FrameParser(config, BASE)
    second.unpack(first.pack())
    assert first_parsed + second.extend(ids[place:]) == parsed
    assert second.pack() == parser.pack()


def test_levels_of_a_frame_follow_the_slots(config):
    assert frame_to_levels([10, 11, 12, 13, 14, 15, 16], config.slot_levels) == [[10], [11, 14], [12, 13, 15, 16]]


@pytest.mark.golden
def test_parser_of_the_recorded_ids_gives_the_recorded_codes(golden, cases, facts):
    parser = FrameParser(golden.config, facts["token_ids"]["audio_base"])
    frames = parser.extend(cases["snac_full/audio_tokens"].tolist())
    levels = [frame_to_levels(frame, golden.config.slot_levels) for frame in frames]
    for level in range(len(golden.config.vq_strides)):
        codes = [code for frame in levels for code in frame[level]]
        assert codes == cases[f"snac_full/codes_{level}"].tolist()


@pytest.mark.golden
def test_parser_keeps_every_frame_where_the_reference_loses_a_zero_code(golden, cases, facts):
    parser = FrameParser(golden.config, facts["token_ids"]["audio_base"])
    ids = cases["snac_stream_zero_code/audio_tokens"].tolist()
    assert len(parser.extend(ids)) * golden.config.ids_per_frame == len(ids)
    assert parser.violations == 0
