"""From a checkpoint's name to a local directory: inside a wheel, on this disk, or from the Hugging Face hub.

A source is `owner/name` or `owner/name@revision` (a hub id) or `package:relative/path` (a directory that ships in an
installed package). What a user may ask for: a name on the model's card, a local directory, or a hub id.
"""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mstar_core.errors import CheckpointError, nearest

CONFIGURATION_FILES = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja")
"""Configurations, tokenizers (`merges.txt`, SentencePiece, tiktoken) and chat templates, as the hub names them."""

WEIGHT_FILES = ("*.safetensors",)
"""Weights that hold tensors and nothing else."""

Config = TypeVar("Config")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")
_PACKAGED = re.compile(r"([A-Za-z_][\w.]*):([^/\\].*)")


def checkpoint_directory(
    wanted: str,
    *,
    model: str,
    sources: Mapping[str, str],
    extra_files: Sequence[str] = (),
    weights: bool = True,
) -> Path:
    """The directory of the checkpoint that a user asked for; downloads what is missing.

    `sources` are the checkpoints on the card of `model`, name to source. `extra_files` are patterns of files that the
    model needs beside configuration, tokenizer and safetensors. `weights=False` leaves weights out of a download.
    Raises `CheckpointError`.
    """
    source = sources.get(wanted, wanted)
    packaged = _PACKAGED.fullmatch(source)
    if wanted in sources and packaged:
        return _packaged(packaged[1], packaged[2], f"checkpoint {wanted!r} of model {model!r}")
    local = Path(source).expanduser()
    if local.is_dir():
        return local.resolve()
    if local.exists():
        raise CheckpointError(f"checkpoint {wanted!r} of model {model!r}: {local} is a file; a directory is needed")
    if not _HUB_ID.fullmatch(source):
        raise CheckpointError(
            f"model {model!r} has no checkpoint {wanted!r}{nearest(wanted, sources)}, and there is no such directory;"
            f" valid: {', '.join(sources)}, a local directory, or a hub id 'owner/name'"
        )
    return _downloaded(source, (*CONFIGURATION_FILES, *(WEIGHT_FILES if weights else ()), *extra_files), model)


def read_config(path: Path, parse: Callable[[Mapping[str, Any]], Config]) -> Config:
    """A JSON object through `parse`.

    What `parse` raises becomes a `CheckpointError` that names the file, and the missing key where it is a KeyError.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    try:
        return parse(values)
    except KeyError as error:
        raise CheckpointError(f"{path}: the key {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _packaged(package: str, relative: str, subject: str) -> Path:
    try:
        root = importlib.resources.files(package)
    except ModuleNotFoundError as error:
        raise CheckpointError(f"{subject}: it ships in package {package!r}, which is not installed") from error
    directory = Path(str(root.joinpath(relative)))
    if not directory.is_dir():
        raise CheckpointError(f"{subject}: {directory} is not a directory; reinstall the distribution of {package!r}")
    return directory


def _downloaded(source: str, patterns: Sequence[str], model: str) -> Path:
    from huggingface_hub import errors, snapshot_download  # here, since its import takes longer than a whole listing

    repository, _, revision = source.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(patterns)))
    except errors.GatedRepoError as error:
        problem, advice = "access is restricted", f"ask for it at its page and run 'hf auth login' ({_first(error)})"
    except errors.RevisionNotFoundError as error:
        problem, advice = f"there is no revision {revision!r}", f"check the part behind '@' ({_first(error)})"
    except errors.RepositoryNotFoundError as error:
        problem, advice = "the hub has no such repository", f"check the id, or run 'hf auth login' ({_first(error)})"
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        problem = "it is not in the local cache and the hub cannot be reached"
        advice = f"go online once, unset HF_HUB_OFFLINE, or pass a local directory ({_first(error)})"
    except (errors.HfHubHTTPError, OSError) as error:
        problem, advice = "the download failed", f"try again ({_first(error)})"
    raise CheckpointError(f"checkpoint {source!r} for model {model!r}: {problem}; {advice}")


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
