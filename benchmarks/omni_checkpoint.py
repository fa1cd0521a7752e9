"""Checkpoints of Qwen3-Omni with random weights, in which nothing ends by itself, for benchmarks."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

FIXTURE = Path(__file__).parents[1] / "plugins" / "mstar-qwen-omni" / "tests" / "data" / "qwen_omni"
"""Whose sizes, tokenizer and settings are those of `tiny`."""

MID: dict[str, dict[str, Any]] = {
    "thinker_config.text_config": {
        "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256,
    },
    "thinker_config.audio_config": {"output_dim": 512},
    "thinker_config.vision_config": {"out_hidden_size": 512},
    "talker_config": {"thinker_hidden_size": 512, "num_code_groups": 8},
    "talker_config.text_config": {
        "hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
        "num_local_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192,
        "shared_expert_intermediate_size": 384, "intermediate_size": 768,
    },
    "talker_config.code_predictor_config": {
        "hidden_size": 384, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 1024, "num_code_groups": 8, "layer_types": ["full_attention"] * 3,
    },
    "code2wav_config": {
        "num_quantizers": 8, "hidden_size": 192, "num_hidden_layers": 3, "intermediate_size": 512, "decoder_dim": 128,
        "sliding_window": 24,
    },
}  # fmt: skip
"""What the middle size changes in the fixture's configuration. Rotary sections follow from the head size."""


def write_checkpoint(directory: Path, size: str) -> None:
    """Random weights in the published layout, in which nothing ends by itself."""
    from transformers import AutoConfig, Qwen3OmniMoeForConditionalGeneration

    values = json.loads((FIXTURE / "config.json").read_text())
    for path, changes in (MID if size == "mid" else {}).items():
        _at(values, path).update(changes)
    if size == "mid":
        for path in ("thinker_config.text_config", "talker_config.text_config"):
            _at(values, path)["rope_parameters"]["mrope_section"] = [12, 10, 10]
    (directory / "config.json").write_text(json.dumps(values))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.json", "preprocessor_config.json"):
        (directory / name).write_bytes((FIXTURE / name).read_bytes())
    with quiet():
        torch.manual_seed(0)
        model = Qwen3OmniMoeForConditionalGeneration(AutoConfig.from_pretrained(directory)).eval()
        _enliven(model)
        model.save_pretrained(directory)


def _at(values: dict[str, Any], path: str) -> dict[str, Any]:
    for key in path.split("."):
        values = values[key]
    return values


def _enliven(model: Any) -> None:
    """Larger weights, so that replies and codes depend on what came before; rows of zeros for the ids that end."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                fan = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * fan**-0.5)
        model.talker.codec_head.weight[model.config.talker_config.codec_eos_token_id] = 0
        model.thinker.lm_head.weight[model.config.im_end_token_id] = 0


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' remarks on the configuration."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
