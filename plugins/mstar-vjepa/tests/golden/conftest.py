"""The recorded cases as parameters of tests: an argument's name says which of them a test takes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

_DEFAULT = Path(__file__).parents[1] / "data"

TAKES = {
    "encoder_case": ("vjepa2", r"encoder_.*|preprocess_encode"),
    "predictor_case": ("vjepa2", r"predictor_.*"),
    "classifier_case": ("vjepa2", r"cls_.*"),
    "clip_pictures": ("vjepa2", r"preprocess"),
    "frame_pictures": ("vjepa2_ac", r"preprocess_.*"),
    "frames_case": ("vjepa2_ac", r"encode_frames"),
    "video_case": ("vjepa2_ac", r"encode_video"),
    "layers_case": ("vjepa2_ac", r"encode_video_layers"),
    "pose_update": ("vjepa2_ac", r"pose_update"),
    "pose_diff": ("vjepa2_ac", r"pose_diff"),
    "one_step": ("vjepa2_ac", r"predict_one_step"),
    "forced_case": ("vjepa2_ac", r"predict_(teacher_forced|extrinsics)|other_grid"),
    "mask_case": ("vjepa2_ac", r"attention_mask"),
    "other_grid": ("vjepa2_ac", r"other_grid"),
    "rollout_case": ("vjepa2_ac", r"rollout_(h\d+|ctx\d+_h\d+|from_image_h\d+)"),
    "given_case": ("vjepa2_ac", r"rollout_(given_states|extrinsics)"),
    "energy_case": ("vjepa2_ac", r"energy_grid_.*"),
    "plan_case": ("vjepa2_ac", r"cem_.*"),
}
"""The model and the names of the cases that each argument stands for."""


@dataclass(frozen=True)
class Case:
    """One recorded case of the set in `directory`."""

    directory: Path
    name: str
    file: str
    params: Mapping[str, Any]
    tolerance: Mapping[str, float]

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by their recorded names."""
        return load_file(self.directory / self.file)

    def given(self, name: str) -> np.ndarray:
        """An input."""
        return self.tensors[f"in.{name}"].numpy()

    def has(self, name: str) -> bool:
        """Whether there is such an input."""
        return f"in.{name}" in self.tensors

    def wanted(self, name: str) -> np.ndarray:
        """An output."""
        return self.tensors[f"out.{name}"].numpy()

    def check(self, found: Any, name: str, part: Any = ...) -> None:
        """Compare with (a part of) an output, within the case's tolerance."""
        np.testing.assert_allclose(np.asarray(found), self.wanted(name)[part], **self.tolerance)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument, (kind, pattern) in TAKES.items():
        if argument in metafunc.fixturenames:
            root = Path(metafunc.config.getoption("--golden", default=None) or _DEFAULT)
            cases = [case for case in _cases(root, kind) if re.fullmatch(pattern, case.name)]
            metafunc.parametrize(argument, cases, ids=[f"{case.directory.name}-{case.name}" for case in cases])


def _cases(root: Path, kind: str) -> list[Case]:
    """The cases of all sets of a model below `root`."""
    found = []
    for path in sorted(root.rglob("cases.json")):
        config = path.parent / "config.json"
        if not config.is_file() or json.loads(config.read_text()).get("model_type") != kind:
            continue
        for case in json.loads(path.read_text())["cases"]:
            found.append(Case(path.parent, case["name"], case["file"], case["params"], case["tolerance"]))
    return found


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory):
    """The checkpoint that a case of the world model was recorded with: the set's own, with the case's shape."""
    made: dict[tuple[Path, str], Path] = {}

    def making(case: Case) -> Path:
        changes = {name: case.params[name] for name in ("use_extrinsics", "img_size") if case.params.get(name)}
        if not changes:
            return case.directory
        key = (case.directory, json.dumps(changes))
        if key not in made:
            made[key] = _changed(case.directory, tmp_path_factory.mktemp("changed"), changes)
        return made[key]

    return making


def _changed(source: Path, target: Path, changes: Mapping[str, Any]) -> Path:
    (archive,) = source.glob("*.pt")
    shutil.copyfile(archive, target / archive.name)
    config = json.loads((source / "config.json").read_text())
    config["predictor"]["use_extrinsics"] = changes.get("use_extrinsics", False)
    if "img_size" in changes:
        config["encoder"]["img_height"], config["encoder"]["img_width"] = changes["img_size"]
    (target / "config.json").write_text(json.dumps(config))
    return target
