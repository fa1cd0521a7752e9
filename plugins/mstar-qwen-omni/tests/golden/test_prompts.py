import numpy as np
import pytest
from mstar_qwen_omni.prompt import TextTokens, lay_out

from mstar_core.spec.content import Audio, Image, Text

pytestmark = pytest.mark.golden


def test_ids_and_positions_of_every_conversation_are_the_references(conversations, golden_dir):
    tokens = TextTokens(golden_dir)
    for case in conversations.values():
        prompt = lay_out(case.turns(), tokens, case.config.ids, case.config.positions_per_second)
        np.testing.assert_array_equal(prompt.ids, case.tensors["input_ids"], err_msg=case.name)
        np.testing.assert_array_equal(prompt.positions, case.tensors["thinker_position_ids"], err_msg=case.name)


def test_chats_of_text_are_prepared_as_the_reference_does(conversations, golden_processor, prepare):
    chats = [case for case in conversations.values() if "chat" in case.facts]
    assert chats
    for case in chats:
        made = prepare(*[Text(said, role=role) for role, said in case.facts["chat"]], by=golden_processor)
        np.testing.assert_array_equal(made["ids"][0], case.tensors["input_ids"])
        np.testing.assert_array_equal(made["positions"][0], case.tensors["thinker_position_ids"])


def test_a_raw_picture_is_prepared_as_the_reference_does(conversations, recorded, golden_processor, prepare):
    case = conversations["raw_image_chat"]
    pixels = recorded["preproc_image_exact"]["image_hwc_uint8"].numpy()
    system, user = _said(case)
    made = prepare(Text(system, role="system"), Image(pixels), Text(user), by=golden_processor)
    np.testing.assert_array_equal(made["ids"][0], case.tensors["input_ids"])
    np.testing.assert_array_equal(made["positions"][0], case.tensors["thinker_position_ids"])
    np.testing.assert_allclose(made["pictures"][0] / 127.5 - 1, case.tensors["pixel_values"], atol=1e-6)
    np.testing.assert_array_equal(made["grids"], case.tensors["image_grid_thw"])


def test_raw_sound_is_prepared_as_the_reference_does(conversations, recorded, golden_processor, prepare):
    case = conversations["raw_audio_chat"]
    waveform = recorded["preproc_audio"]["waveform"].numpy()
    (user,) = _said(case)
    made = prepare(Audio(waveform, 16000), Text(user), by=golden_processor)
    np.testing.assert_array_equal(made["ids"][0], case.tensors["input_ids"])
    np.testing.assert_array_equal(made["positions"][0], case.tensors["thinker_position_ids"])
    np.testing.assert_allclose(made["clips"][0], case.tensors["input_features"][0], atol=1e-5)


def _said(case):
    """What is said in each turn but the reply's."""
    turns = case.facts["prompt_text"].split("<|im_end|>\n")[:-1]
    return [turn.partition("\n")[2].rpartition("|>")[2] for turn in turns]
