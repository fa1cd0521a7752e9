"""The plugin against the reference's recorded cases: any directory of the fixture's format, by `--golden DIR`."""

import json

import mstar_orpheus.plugin
import numpy as np
import pytest
import torch
from mstar_orpheus.config import OrpheusConfig, llm_directory
from mstar_orpheus.lm import LanguageModel
from mstar_orpheus.processor import OrpheusProcessor
from mstar_orpheus.walks import nodes
from safetensors.torch import load_file

from mstar_core.client.engine import Engine
from mstar_core.engines.base import BatchLimits, Call, EngineSettings, NodeContext, NodeRequest
from mstar_core.engines.kv_cache import KVCacheEngine
from mstar_core.engines.sampling import Sampler, SamplerRow, SamplerSpec, truncated
from mstar_core.engines.segments import Segment
from mstar_core.nn.llama_config import LlamaConfig
from mstar_core.testing.plugins import registry_with

pytestmark = pytest.mark.golden

CPU = torch.device("cpu")
PLAIN = {"temperature": 0.0, "repetition_penalty": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "slot_mask": False}


class EveryLogit(LanguageModel):
    """The plugin's model, giving the logits at every position."""

    samplers = {}
    host_outputs = ()
    run_ahead = ()

    def __init__(self, context):
        super().__init__(context)
        self.samplers, self.masks = {}, {}

    def segments(self, call):
        return Segment(tokens=len(call.inputs["ids"]))

    def phases(self, call):
        return {}

    def forward(self, step):
        return {"token": step.split(self.model.logits(self.model(step.tokens("ids"), step)))}

    def finish(self, call, row):
        return {}


@pytest.fixture(scope="module")
def cases(golden_dir):
    return json.loads((golden_dir / "cases.json").read_text())["cases"]


@pytest.fixture(scope="module")
def tensors(golden_dir):
    return load_file(golden_dir / "cases.safetensors")


@pytest.fixture(scope="module")
def config(golden_dir):
    return OrpheusConfig.read(golden_dir)


@pytest.fixture(scope="module")
def engine(golden_dir):
    with Engine("orpheus", checkpoint=golden_dir, registry=registry_with(mstar_orpheus.plugin)) as engine:
        yield engine


@pytest.fixture(scope="module")
def logits_of(golden_dir, config):
    node = nodes(config)[0]
    context = NodeContext(node=node, config=config, checkpoint=golden_dir, device=CPU, dtype=torch.float32)
    runner = KVCacheEngine.build(EveryLogit(context), context, EngineSettings(kv_tokens=4096))

    def run(ids):
        request = NodeRequest(1, PLAIN, 0)
        runner.open(request)
        batch = runner.collect("prefill", [Call(request, "prefill", {"ids": ids}, 0)], BatchLimits(tokens=8192))
        runner.run(batch)
        (outcome,) = runner.finish(batch)
        logits = outcome["token"].tensor().clone()
        runner.close(request)
        return logits

    return run


def lm_cases(cases):
    return [name for name, case in cases.items() if case["kind"] == "lm"]


def test_prefill_logits_equal_the_reference(cases, tensors, logits_of):
    for name in lm_cases(cases):
        logits = logits_of(tensors[f"{name}/prompt_ids"])
        torch.testing.assert_close(logits, tensors[f"{name}/prefill_logits"], atol=1e-3, rtol=0)


def test_step_logits_equal_the_reference_along_its_ids(cases, tensors, logits_of):
    for name in lm_cases(cases):
        prompt, chosen = tensors[f"{name}/prompt_ids"], tensors[f"{name}/tokens"]
        logits = logits_of(torch.cat([prompt, chosen[:-1]]))[len(prompt) - 1 :]
        torch.testing.assert_close(logits, tensors[f"{name}/step_logits"], atol=1e-3, rtol=0)
        assert torch.equal(logits.argmax(-1), chosen)


def test_teacher_forced_logits_of_random_ids_equal_the_reference(tensors, logits_of):
    logits = logits_of(tensors["lm_random/input_ids"])
    torch.testing.assert_close(logits, tensors["lm_random/logits"], atol=1e-3, rtol=0)


def test_prompts_are_laid_out_as_the_reference_does(cases, tensors, config, golden_dir):
    processor = OrpheusProcessor(config, golden_dir)
    for name in lm_cases(cases):
        prompt = processor.prompt(cases[name]["voice"], cases[name]["text"])
        assert prompt.tolist() == tensors[f"{name}/prompt_ids"].tolist()


def test_both_spellings_of_the_config_are_one(golden_dir):
    directory = llm_directory(golden_dir)
    other = LlamaConfig.parse(json.loads((directory / "config_hub_style.json").read_text()))
    assert other == LlamaConfig.read(directory)


def speak(engine, case, **parameters):
    greedy = {"temperature": 0.0, "repetition_penalty": 1.0, "noise": False, "voice": case["voice"]}
    return engine.generate(case["text"], **greedy, **parameters)


@pytest.mark.parametrize("mask", [True, False])
def test_text_in_gives_as_many_frames_as_the_reference_and_stops(engine, cases, mask):
    for name in lm_cases(cases):
        result = speak(engine, cases[name], slot_mask=mask)
        assert result.finish_reason == "stop"
        assert result.audio.samples.size == 2048 * cases[name]["frames"]
        assert result.usage["output_tokens"] == len(cases[name]["tokens"])


def test_text_in_sounds_like_the_whole_clip_decode_of_the_reference_ids(engine, cases, tensors):
    name = _case_of(cases, tensors, "snac_full/audio_tokens")
    audio = speak(engine, cases[name]).audio.samples
    np.testing.assert_allclose(audio, tensors["snac_full/wav_zero_noise"].numpy(), atol=1e-4)


def test_compat_sounds_like_the_official_windows(engine, cases, tensors):
    name = _case_of(cases, tensors, "snac_stream/audio_tokens")
    audio = speak(engine, cases[name], decode_mode="compat").audio.samples
    np.testing.assert_allclose(audio, tensors["snac_stream/chunks_float"].flatten().numpy(), atol=1e-4)
    whole = (audio * 32767).astype(np.int16).astype(int)
    assert np.abs(whole - tensors["snac_stream/chunks_int16"].flatten().numpy()).max() <= 1


def _case_of(cases, tensors, key):
    ids = tensors[key].tolist()
    found = [name for name in lm_cases(cases) if cases[name]["tokens"][:-1] == ids]
    if not found:
        pytest.skip("this fixture's codec case is no reply of its language model")
    return found[0]


def test_sampler_probabilities_equal_the_reference_processors(cases, tensors):
    for row in cases["sampling"]["rows"]:
        logits, history = tensors[f"sampling/{row['logits']}"], tensors[f"sampling/{row['history']}"]
        vocab = logits.shape[0]
        spec = SamplerSpec(
            vocab=vocab,
            temperature=row["temperature"],
            top_k=row["top_k"],
            top_p=row["top_p"],
            repetition_penalty=row["repetition_penalty"],
        )
        sampler = Sampler(spec, purpose=("lm", "audio"), slots=2, masks=None, device=CPU)
        rows = sampler.rows([SamplerRow(spec.settings({}), 1, 0, 1, -1, True)])
        ones = torch.ones(len(history), dtype=torch.int32)
        sampler.count(torch.ones_like(history), history, ones)
        cut = truncated(sampler.scores(logits[None], rows).log_softmax(-1), rows, vocab)
        probabilities = torch.zeros(vocab, dtype=torch.float64)
        probabilities[cut.ids[0]] = cut.probabilities[0] / cut.total[0]
        expected = tensors[f"sampling/{row['key']}"]
        torch.testing.assert_close(probabilities.float(), expected, atol=1e-5, rtol=0)
