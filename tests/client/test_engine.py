"""`mstar_core.Engine` with the scripted model."""

import av
import numpy as np
import pytest

from mstar_core import Engine
from mstar_core.client.engine import Result
from mstar_core.errors import ConfigurationError, DeadlineExceeded, InvalidRequest, NodeFailed, Unavailable
from mstar_core.spec.content import Audio, Image, Text
from mstar_core.spec.placement import Placement
from mstar_core.testing import scripted
from mstar_core.testing.plugins import registry_with
from mstar_core.testing.scripted import ITEM_SAMPLES, RATE
from mstar_core.wire.messages import EMIT_WINDOW

ENDLESS = {"items": 100_000, "max_items": 100_000}


@pytest.fixture(scope="module")
def engine():
    with Engine("scripted", registry=registry_with(scripted)) as engine:
        yield engine


def test_generate_gives_all_that_was_made_and_why_it_ended(engine):
    result = engine.generate("hello", items=3, rounds=2, seed=1)
    assert result.audio.samples.shape == (3 * ITEM_SAMPLES,)
    assert (result.audio.samples.dtype, result.audio.rate) == (np.float32, RATE)
    assert result.tensors["count"].tolist() == [1, 2]
    assert (result.text, result.images, result.finish_reason) == ("", (), "stop")
    assert result.usage == {"input_tokens": 0, "output_tokens": 0}


def test_generate_takes_text_content_or_a_sequence_of_both(engine):
    said = [engine.generate(given, seed=3).audio.samples for given in ("hello", Text("hello"), ["hello"])]
    np.testing.assert_array_equal(said[0], said[1])
    np.testing.assert_array_equal(said[0], said[2])


def test_stream_gives_content_as_it_is_made_and_the_same_samples_as_generate(engine):
    pieces = list(engine.stream("hello", items=9, seed=4))
    assert len(pieces) > 1
    whole = engine.generate("hello", items=9, seed=4).audio.samples
    np.testing.assert_array_equal(np.concatenate([piece.samples for piece in pieces]), whole)


def test_leaving_a_stream_early_cancels_the_request(engine):
    stream = engine.stream("hello", items=100_000, max_items=100_000, delay_ms=1.0)
    next(stream)
    stream.close()
    engine.generate("hello")
    while engine.service.open_requests:
        pass
    ended = [sample for sample in engine.service.metrics() if sample.name == "mstar_requests_ended"]
    assert "cancelled" in {sample.labels["reason"] for sample in ended}


def test_a_request_that_outlasts_its_timeout_fails_and_the_engine_goes_on(engine):
    with pytest.raises(DeadlineExceeded, match=r"within 0\.2 s"):
        engine.generate("hello", timeout=0.2, delay_ms=1.0, **ENDLESS)
    with pytest.raises(DeadlineExceeded):
        list(engine.stream("hello", timeout=0.2, delay_ms=1.0, **ENDLESS))
    assert engine.generate("hello", timeout=60).finish_reason == "stop"


def test_a_timeout_that_cannot_be_names_the_field(engine):
    with pytest.raises(InvalidRequest) as caught:
        engine.generate("hello", timeout=-1.0)
    assert caught.value.param == "timeout"


def test_a_request_waits_for_a_reader_that_takes_nothing_and_loses_nothing(engine):
    def waiting():
        return sum(sample.value for sample in engine.service.metrics() if sample.name == "mstar_outputs_waiting")

    ticket = engine.submit("hello", items=2000, max_items=3000)
    while waiting() < EMIT_WINDOW:
        pass
    others = [engine.generate("hello", items=100).audio.samples.size for _ in range(3)]
    assert others == [100 * ITEM_SAMPLES] * 3
    assert waiting() <= EMIT_WINDOW + 2  # a run under way when the window filled up may emit once more
    assert sum(content.samples.size for content in ticket) == 2000 * ITEM_SAMPLES
    assert ticket.end.reason == "stop"


def test_a_request_that_cannot_be_names_the_field(engine):
    with pytest.raises(InvalidRequest) as caught:
        engine.generate("hello", itmes=3)
    assert caught.value.param == "itmes"
    with pytest.raises(InvalidRequest, match="makes audio, tensor, not text"):
        engine.generate("hello", outputs=["text"])


def test_a_failing_node_raises_and_the_engine_goes_on(engine):
    with pytest.raises(NodeFailed, match="writer"):
        engine.generate("hello", fail="writer")
    assert engine.generate("hello").finish_reason == "stop"


def test_a_closed_engine_refuses_requests():
    engine = Engine("scripted", registry=registry_with(scripted), placement=Placement())
    engine.close()
    with pytest.raises(Unavailable):
        engine.generate("hello")


def test_a_placement_file_is_read(tmp_path):
    path = tmp_path / "place.yaml"
    path.write_text("models: {scripted: {running: 1}}\n")
    with Engine("scripted", registry=registry_with(scripted), placement=path) as engine:
        assert engine.generate("hello").finish_reason == "stop"


def test_progress_is_told():
    said = []
    Engine("scripted", registry=registry_with(scripted), progress=said.append).close()
    assert said == ["reading scripted", "loading weights"]


def result(*contents):
    return Result(contents, "stop", {})


def test_a_result_writes_its_audio_in_the_format_of_the_suffix(tmp_path):
    tone = np.zeros(480, np.float32)
    made = result(Audio(tone, 24_000), Audio(tone, 24_000))
    made.write_audio(tmp_path / "tone.flac")
    with av.open(str(tmp_path / "tone.flac")) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == 960


def test_audio_that_is_not_there_or_a_suffix_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no audio to write"):
        result(Text("hello")).write_audio(tmp_path / "x.wav")
    with pytest.raises(ConfigurationError, match=r"known are \.wav"):
        result(Audio(np.zeros(3, np.float32), 24_000)).write_audio(tmp_path / "x.wvv")


def test_a_result_shows_what_it_holds():
    image = Image(np.zeros((2, 2, 3), np.uint8))
    assert repr(result(Text("a"), Text("bc"), image)) == "<Result: 3 characters; 1 images; finish_reason 'stop'>"
    assert repr(result()) == "<Result: nothing; finish_reason 'stop'>"
