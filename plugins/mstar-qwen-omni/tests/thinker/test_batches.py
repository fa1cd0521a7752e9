import pytest
import torch

from mstar_core.engines.base import BatchLimits

CASES = ("text", "text_eos", "image", "audio", "video_fractional", "mixed", "audio_in_video")
SAMPLED = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.2}
STEPS = 6

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def reply(harness, case, key, **params):
    """A reply of a request alone: its ids, and its logits by step, those of the prompt first."""
    harness.logits.clear()
    request = harness.open(key, seed=key, **params)
    outputs = harness.read(request, case)
    ids = [int(outputs["token"].tensor())]
    for _ in range(STEPS):
        outputs = harness.call(request, "write", said=outputs["token"])
        ids.append(int(outputs["token"].tensor()))
    harness.engine.close(request)
    return ids, torch.cat(harness.logits)


@dtypes
def test_replies_in_one_batch_have_the_bits_of_each_alone(harness_of, conversations, dtype):
    harness = harness_of(dtype=dtype)
    cases = [conversations[name] for name in CASES]
    alone = [reply(harness, case, key, **SAMPLED) for key, case in enumerate(cases)]
    requests = [harness.open(key, seed=key, **SAMPLED) for key in range(len(cases))]
    for request, case in zip(requests, cases, strict=True):
        for walk, inputs in case.brought():
            harness.call(request, walk, **inputs)
    harness.logits.clear()
    reading = [(request, *harness.prompt(case)) for request, case in zip(requests, cases, strict=True)]
    outputs = harness.together(reading)
    prompts = harness.logits[0].split([len(case.ids) for case in cases])
    ids = [[int(each["token"].tensor())] for each in outputs]
    logits = [[prompt] for prompt in prompts]
    for _ in range(STEPS):
        writing = [(request, "write", {"said": each["token"]}) for request, each in zip(requests, outputs, strict=True)]
        outputs = harness.together(writing)
        for row, each in enumerate(outputs):
            ids[row].append(int(each["token"].tensor()))
            logits[row].append(harness.logits[-1][row : row + 1])
    for row, (solo_ids, solo_logits) in enumerate(alone):
        assert torch.equal(torch.cat(logits[row]), solo_logits), CASES[row]
        assert ids[row] == solo_ids, CASES[row]


@dtypes
@pytest.mark.parametrize("tokens", [1, 7, 32])
def test_a_prompt_that_is_cut_has_the_bits_of_one_that_is_not(harness_of, conversations, dtype, tokens):
    whole, cut = harness_of(dtype=dtype), harness_of(BatchLimits(tokens=tokens), dtype)
    case = conversations["mixed"]
    assert reply(whole, case, 1)[0] == reply(cut, case, 1)[0]
    assert torch.equal(torch.cat(whole.logits), torch.cat(cut.logits))


def test_media_that_were_heard_on_one_worker_are_read_on_another(harness_of, conversations):
    case = conversations["mixed"]
    alone, ears, reader = harness_of(), harness_of(), harness_of()
    expected = alone.read(alone.open(), case)
    first = ears.open()
    for walk, inputs in case.brought():
        ears.call(first, walk, **inputs)
    second = reader.open()
    batch = ears.engine.leave(first)
    ears.engine.run(batch)
    reader.engine.enter(second, ears.engine.left(batch))
    second.runs = first.runs
    walk, inputs = reader.prompt(case)
    made = reader.call(second, walk, **inputs)
    assert torch.equal(made["spoken"].tensor(), expected["spoken"].tensor())
    assert torch.equal(reader.logits[-1], alone.logits[-1])


def test_a_prompt_whose_places_and_rows_differ_fails_alone(harness, conversations):
    case, good = conversations["audio"], conversations["text"]
    lacking, whole = harness.open(1), harness.open(2)
    harness.call(lacking, "hear", sound=case["audio_features_out"][:-1])
    with pytest.raises(ValueError, match=r"places for rows of sounds, the encoder made"):
        harness.together([(lacking, *harness.prompt(case))])
    assert "token" in harness.read(whole, good)


def test_the_repetition_penalty_covers_the_prompt_and_the_reply(harness, conversations):
    case = conversations["text"]
    ids, logits = reply(harness, case, 1, temperature=0.0, repetition_penalty=1.5)
    history = case.ids.tolist()
    for id, row in zip(ids, logits[len(case.ids) - 1 :], strict=True):
        seen = torch.zeros(len(row), dtype=torch.bool).index_fill(0, torch.tensor(history), value=True)
        assert id == int(torch.where(seen, torch.where(row < 0, row * 1.5, row / 1.5), row).argmax())
        history.append(id)
    assert ids != case.facts["thinker_tokens"][: len(ids)]
