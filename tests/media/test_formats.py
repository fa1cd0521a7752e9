import pytest

from mstar_core.media import AUDIO_FORMATS, UnknownFormat, audio_format, encode_audio


def test_formats_are_those_of_the_openai_speech_endpoint():
    assert set(AUDIO_FORMATS) == {"wav", "pcm", "flac", "mp3", "opus", "aac"}


def test_format_when_misspelt_then_error_offers_nearest_and_lists_all():
    with pytest.raises(UnknownFormat, match=r"'mp33' \(did you mean 'mp3'\?\); the formats are wav, pcm") as caught:
        audio_format("mp33")
    assert isinstance(caught.value, ValueError)
    assert caught.value.choices == tuple(AUDIO_FORMATS)


@pytest.mark.parametrize("streaming_speed", [1.0, 1.5])
@pytest.mark.parametrize("name", AUDIO_FORMATS)
def test_body_of_each_format_starts_with_its_magic(name, streaming_speed, speech):
    assert encode_audio(speech(0.3), name, 24000, streaming_speed).startswith(AUDIO_FORMATS[name].magic)
