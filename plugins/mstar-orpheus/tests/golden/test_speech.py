import shutil

import numpy as np
import pytest
import torch
from mstar_orpheus.codec.decoder import SnacDecoder
from mstar_orpheus.codec.frames import FrameParser
from mstar_orpheus.codec.stream import decode_windows

pytestmark = pytest.mark.golden

GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0, "noise": False}


def sounded(checkpoint, facts, ids):
    """The samples of the ids, decoded all at once."""
    decoder = SnacDecoder.load(checkpoint / "snac")
    frames = FrameParser(decoder.config, facts["token_ids"]["audio_base"]).extend(ids)
    with torch.inference_mode():
        return decode_windows(decoder, torch.tensor([frames]), [0])[0].numpy()


def test_text_becomes_the_samples_of_the_references_ids(golden_dir, facts, spoken, serve, speak):
    with serve(golden_dir) as service:
        for case in spoken.values():
            samples, reason = speak(service, case["text"], voice=case["voice"], **GREEDY)
            assert reason == "stop"
            assert len(samples) == case["frames"] * 2048
            np.testing.assert_allclose(samples, sounded(golden_dir, facts, case["tokens"]), atol=1e-4)


def test_a_codec_as_pytorch_model_bin_gives_the_same_samples(tmp_path, golden_dir, spoken, serve, speak):
    copy = shutil.copytree(golden_dir, tmp_path / "copy")
    (copy / "snac" / "model.safetensors").unlink()
    case = next(iter(spoken.values()))
    heard = []
    for checkpoint in (golden_dir, copy):
        with serve(checkpoint) as service:
            heard.append(speak(service, case["text"], voice=case["voice"], **GREEDY)[0])
    np.testing.assert_array_equal(*heard)


def test_concurrent_speech_is_what_each_says_alone(golden_dir, spoken, serve, speak):
    from mstar_core.spec.content import Text

    with serve(golden_dir) as service:
        alone = {name: speak(service, case["text"], voice=case["voice"], **GREEDY)[0] for name, case in spoken.items()}
        tickets = [
            (name, service.submit("orpheus", [Text(case["text"])], {"voice": case["voice"], **GREEDY}))
            for name, case in spoken.items()
            for _ in range(4)
        ]
        for name, ticket in tickets:
            together = np.concatenate([content.samples for content in ticket])
            np.testing.assert_allclose(together, alone[name], atol=1e-5)
