"""Models of the Hugging Face hub: chooses the files of a repository that form the model, and fetches them. For data
sets, fetches single files.

The hub client keeps its own cache and obeys its own settings (HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, tokens).
"""

from __future__ import annotations

import errno
import fnmatch
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

from lucebox.errors import HubError, InvalidRequestError, ModelNotFoundError, UnsupportedError
from lucebox.models.checksums import check_once
from lucebox.models.embedding_modules import MODULES_FILE, module_folders
from lucebox.models.embedding_prompts import PROMPTS_FILE

__all__ = [
    "Progress",
    "cached",
    "download",
    "fetch",
    "fetch_data",
    "fetch_projector",
    "is_link",
    "model_in_folder",
    "models_in_folder",
    "remove",
]

# Called with a description, bytes done and bytes in total (0: unknown).
Progress = Callable[[str, int, int], None]

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.I)
# A quantisation, with the prefix of its maker's type selection (unsloth's UD-, mradermacher's i1-).
_QUANT = re.compile(
    r"(?<![a-z0-9])((?:ud-|i1-)?(?:(?:i?q\d|tq\d)(?:_[a-z0-9]+)*|bf16|f16|f32|mxfp4(?:_moe)?|nvfp4))(?![a-z0-9])", re.I
)
_CHOOSERS = ("ud-", "i1-")
# Not models: vision projectors, calibration data, prediction blocks on their own.
_NOT_A_MODEL = re.compile(r"(?<![a-z0-9])(mmproj|imatrix)(?![a-z0-9])", re.I)
_PREDICTION_BLOCK = re.compile(r"(?<![a-z0-9])mtp(?![a-z0-9])", re.I)
# Order of choice when no quantisation is named: the best trade-off first, then larger ones, then smaller ones.
_PREFERRED = [
    "q4_k_m", "q4_k_s", "q5_k_m", "q5_k_s", "q6_k", "q8_0", "iq4_xs", "iq4_nl", "q4_1", "q4_0", "q5_1", "q5_0",
    "q3_k_m", "q2_k", "bf16", "f16", "f32",
]  # fmt: skip
_PREFERRED_PROJECTORS = ["bf16", "f16", "q8_0", "f32"]
_SETTINGS = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja", "model.safetensors.index.json",
    "preprocessor_config.json", MODULES_FILE, PROMPTS_FILE,
]  # fmt: skip
_ADAPTER = "is a LoRA adapter, not a model; merge it into its base model (PEFT: merge_and_unload, save_pretrained)"
_CONVERT = (
    "pickled weights of PyTorch, which are not read because they can run code. Convert them to safetensors "
    "(transformers: from_pretrained, save_pretrained), or use a GGUF file"
)
_MODULE_FILES = ("config.json", "model.safetensors")
_TIMEOUT_SECONDS = 15.0
_REMEDY = {
    "model": "give the path of a file, or run a catalog model (`lucebox models` lists them)",
    "data set": "give the prompts as a file of JSON lines",
}


def is_link(text: str) -> bool:
    """Whether "host/path" is on the hub server that the client is set to."""
    return text.startswith(constants.ENDPOINT.split("://", 1)[-1].rstrip("/") + "/")


def cached() -> dict[str, Path]:
    """Hub models in the client's cache that have GGUF or safetensors files, by repository id."""
    try:
        repos = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE).repos
    except huggingface_hub.CacheNotFound:
        return {}
    models = {}
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        for revision in repo.revisions:
            if repo.repo_type == "model" and any(
                file.file_name.endswith((".gguf", ".safetensors")) for file in revision.files
            ):
                models[repo.repo_id] = Path(revision.snapshot_path)
    return models


def download(
    repo: str,
    files: list[str],
    *,
    revision: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    endpoint: str | None = None,
    has_answered: bool = False,
) -> Path:
    """The folder of a hub snapshot with `files`; continues an interrupted download.

    has_answered: the hub has just told the files of the repository.

    Raises:
        ModelNotFoundError, HubError: as in resolve().
    """
    offline = offline or constants.HF_HUB_OFFLINE
    bars = _bars(repo, progress)
    with _hub_errors(repo, endpoint, offline=offline):
        if not offline and not has_answered:
            # An unreachable hub fails here immediately; the download would retry for half a minute.
            huggingface_hub.HfApi(endpoint=endpoint).model_info(repo, revision=revision, timeout=_TIMEOUT_SECONDS)
        folder = Path(
            huggingface_hub.snapshot_download(
                repo,
                revision=revision,
                # The client takes patterns: escape the names.
                allow_patterns=[re.sub(r"([*?[])", r"[\1]", name) for name in files],
                local_files_only=offline,
                etag_timeout=_TIMEOUT_SECONDS,
                tqdm_class=bars,
                endpoint=endpoint,
            )
        )
    # A cached snapshot may lack files of the repository.
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise HubError(f"{repo} on the hub: {absent[0]} is not in the cache, and the hub did not give it")
    for name in files:
        check(repo, folder / name, progress)
    return folder


def check(repo: str, file: Path, progress: Progress | None) -> None:
    """Verifies a file against the hub's SHA-256, which is the name of a large file in the client's cache. A file that
    was verified before and has not changed since is not read again.

    Raises:
        HubError: the file is damaged.
    """
    told = file.resolve().name
    if not re.fullmatch(r"[0-9a-f]{64}", told):
        return

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(f"check {file.name}", done, total)

    try:
        check_once(file, told, Path(constants.HF_HUB_CACHE).parent / "lucebox-verified", report)
    except HubError as error:
        raise HubError(f"{error}: `lucebox rm {repo}` deletes it") from None


def fetch(
    repo: str,
    want: str | None,
    *,
    revision: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    endpoint: str | None = None,
    has_tokenizer: bool = True,
) -> tuple[Path, tuple[str, ...] | None]:
    """The model of a repository: a GGUF file (the first part of a split one) or a folder of safetensors; and the names
    of the repository's files, None if the hub was not asked or did not answer. Then a model in the client's cache is
    used.

    want: a quantisation, a file name or "safetensors"; None: the best trade-off. revision: a branch, tag or commit.
    has_tokenizer: a folder of safetensors must have a tokenizer; a drafter uses its target's.

    Raises:
        ModelNotFoundError: no such model. InvalidRequestError: ambiguous. HubError: the download failed.
    """
    offline = offline or constants.HF_HUB_OFFLINE
    names, unreachable = None, None
    if not offline:
        try:
            with _hub_errors(repo, endpoint):
                info = huggingface_hub.HfApi(endpoint=endpoint).model_info(
                    repo, revision=revision, timeout=_TIMEOUT_SECONDS
                )
            names = tuple(sibling.rfilename for sibling in info.siblings or ())
        except GatedError:
            raise
        except HubError as error:
            unreachable = error
    if names is None:
        folder = _cached_snapshot(repo, revision) or _not_cached(repo, unreachable)
        cached_names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        try:
            files = _choose(repo, cached_names, want, has_tokenizer)
        except ModelNotFoundError as error:
            raise unreachable or error from None
        for name in files:
            check(repo, folder / name, progress)
    else:
        files = _choose(repo, names, want, has_tokenizer)
        folder = download(repo, files, revision=revision, progress=progress, endpoint=endpoint, has_answered=True)
        if MODULES_FILE in files and (modules := _files_of_modules(folder, names)):
            download(repo, modules, revision=revision, progress=progress, endpoint=endpoint, has_answered=True)
    return folder / files[0] if files[0].endswith(".gguf") else folder, names


def fetch_projector(
    repo: str,
    names: Iterable[str],
    fits: Callable[[str], bool],
    *,
    revision: str | None = None,
    progress: Progress | None = None,
    endpoint: str | None = None,
) -> None:
    """Downloads a multimodal projector of a repository, if it has one whose name fits, into the snapshot of its models.

    names: the repository's files.

    Raises:
        HubError: the download failed.
    """
    found = [name for name in names if fnmatch.fnmatch(name.lower(), "*mmproj*.gguf") and fits(name.rsplit("/", 1)[-1])]
    rank = {quant: i for i, quant in enumerate(_PREFERRED_PROJECTORS)}
    found.sort(key=lambda name: (rank.get(_quant(name) or "", len(rank)), name))
    if found:
        download(repo, found[:1], revision=revision, progress=progress, endpoint=endpoint, has_answered=True)


class GatedError(HubError):
    """The hub refuses the model to this user."""


def _cached_snapshot(repo: str, revision: str | None) -> Path | None:
    """The snapshot of a repository in the client's cache; None without one."""
    try:
        found = huggingface_hub.snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=[])
    except Exception:  # versions of the client raise different exceptions
        return None
    folder = Path(found)
    return folder if any(file.is_file() for file in folder.rglob("*")) else None


def _not_cached(repo: str, unreachable: HubError | None) -> NoReturn:
    raise unreachable or HubError(
        f"{repo} is not in the cache {constants.HF_HUB_CACHE}, and offline mode is on. What to do: run once "
        f"without it, or {_REMEDY['model']}"
    )


def _files_of_modules(folder: Path, names: Iterable[str]) -> list[str]:
    """The files of the modules that an embedding checkpoint's modules.json names."""
    wanted = {f"{module}/{file}" for module in module_folders(folder / MODULES_FILE) for file in _MODULE_FILES}
    return sorted(wanted & set(names))


def remove(repo: str) -> int:
    """Deletes a model from the client's cache, all files and revisions. Returns the bytes freed.

    Raises:
        ModelNotFoundError: the cache has no such model.
    """
    try:
        cache = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
    except huggingface_hub.CacheNotFound:
        cache = None
    found = [one for one in (cache.repos if cache else ()) if one.repo_type == "model" and one.repo_id == repo]
    if cache is None or not found:
        raise ModelNotFoundError(f"{repo} is not in the cache {constants.HF_HUB_CACHE}; `lucebox models` lists it")
    plan = cache.delete_revisions(*(revision.commit_hash for revision in found[0].revisions))
    freed = int(plan.expected_freed_size)
    plan.execute()
    return freed


def fetch_data(
    repo: str, pattern: str, *, offline: bool = False, progress: Progress | None = None, endpoint: str | None = None
) -> Path:
    """The first file of a data set's repository whose path matches a pattern ("main/test-*.parquet").

    Raises:
        ModelNotFoundError: no such repository or file. HubError: the download failed.
    """
    offline = offline or constants.HF_HUB_OFFLINE
    if not offline:
        with _hub_errors(repo, endpoint, kind="data set"):
            info = huggingface_hub.HfApi(endpoint=endpoint).dataset_info(repo, timeout=_TIMEOUT_SECONDS)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        if not fnmatch.filter(names, pattern):
            raise ModelNotFoundError(f"{repo} has no file {pattern}; its files: {', '.join(names[:20]) or 'none'}")
    with _hub_errors(repo, endpoint, offline=offline, kind="data set"):
        folder = Path(
            huggingface_hub.snapshot_download(
                repo,
                repo_type="dataset",
                allow_patterns=[pattern],
                local_files_only=offline,
                etag_timeout=_TIMEOUT_SECONDS,
                tqdm_class=_bars(repo, progress),
                endpoint=endpoint,
            )
        )
    found = sorted(folder.glob(pattern))
    if not found:
        raise HubError(f"{repo} on the hub: {pattern} is not in the cache, and the hub did not give it")
    return found[0]


def _choose(repo: str, names: Iterable[str], want: str | None, has_tokenizer: bool) -> list[str]:
    """The files of the chosen model; the parts of a split GGUF file are in order."""
    names = sorted(names)
    everything = _gguf_models(names)
    models = [files for files in everything if not _PREDICTION_BLOCK.search(files[0])]
    if not has_tokenizer and not models:
        models = everything  # a drafter may be a prediction block on its own
    if (want.lower() == "safetensors") if want else not models:
        return _safetensors(repo, names, has_tokenizer)
    if want is None:
        return _preferred(repo, models)
    key = want.lower()
    by_name = [files for files in everything if key in map(str.lower, _names_of(files))]
    if fitting := by_name or _of_quant(models, key) or (_of_quant(everything, key) if not has_tokenizer else []):
        return _only(repo, fitting)
    if key.endswith(".gguf") and _NOT_A_MODEL.search(key):
        raise InvalidRequestError(f"{want!r} of {repo} is not a model but a vision projector or calibration data")
    why = _incomplete(names)
    raise ModelNotFoundError(f"{repo} has no GGUF file for {want!r}; it has {_listing(models) or 'none'}{why}")


def _preferred(repo: str, models: list[list[str]]) -> list[str]:
    """The model with the best trade-off of size and quality."""
    for quant in _PREFERRED:
        if fitting := _of_quant(models, quant):
            return _only(repo, fitting)
    return _only(repo, models)


def _of_quant(models: list[list[str]], key: str) -> list[list[str]]:
    """The models of a quantisation. "q4_k_m" selects the plain one, and "ud-q4_k_m" only if there is no plain one."""
    exact = [files for files in models if _quant(files[0]) == key]
    return exact or [files for files in models if _quant(files[0]) in [chooser + key for chooser in _CHOOSERS]]


def _names_of(files: list[str]) -> set[str]:
    """Names that a user may give: the path or name of a part, with and without .gguf, and the name of the set."""
    names = {*files, *(name.rsplit("/", 1)[-1] for name in files)}
    names |= {_SPLIT.sub(".gguf", name) for name in names}
    return names | {name[: -len(".gguf")] for name in names}


def _only(repo: str, models: list[list[str]]) -> list[str]:
    if len(models) > 1:
        raise InvalidRequestError(f"{repo} has several fitting files: {_listing(models)}; say {repo}:FILE")
    return models[0]


def _gguf_models(names: Iterable[str]) -> list[list[str]]:
    """The GGUF models, each a list of its parts; an incomplete split model is omitted."""
    return [files for files in _gguf_sets(names) if not _missing_parts(files)]


def _gguf_sets(names: Iterable[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        if name.lower().endswith(".gguf") and not _NOT_A_MODEL.search(name):
            split = _SPLIT.search(name)
            groups.setdefault(f"{name[: split.start()]} of {split[2]}" if split else name, []).append(name)
    return [sorted(files) for files in groups.values()]


def _missing_parts(files: list[str]) -> list[int]:
    """The numbers of the parts that a split model lacks."""
    splits = [split for name in files if (split := _SPLIT.search(name))]
    there = {int(split[1]) for split in splits}
    return [number for number in range(1, int(splits[0][2]) + 1) if number not in there] if splits else []


def _incomplete(names: Iterable[str]) -> str:
    """A clause about split models that lack parts; empty without any."""
    lacking = [(files, parts) for files in _gguf_sets(names) if (parts := _missing_parts(files))]
    return "".join(
        f"; of {_SPLIT.sub('', files[0])} part {', '.join(map(str, parts[:8]))} of {len(files) + len(parts)} is missing"
        for files, parts in lacking[:4]
    )


def _quant(name: str) -> str | None:
    found = _QUANT.findall(_SPLIT.sub(".gguf", name).rsplit(".gguf", 1)[0])
    return found[-1].lower() if found else None


def _safetensors(repo: str, names: list[str], has_tokenizer: bool) -> list[str]:
    weights = fnmatch.filter(names, "model*.safetensors") or [
        name for name in fnmatch.filter(names, "*.safetensors") if "/" not in name
    ]
    if "adapter_config.json" in names and "config.json" not in names:
        raise UnsupportedError(f"{repo} {_ADAPTER}")
    if not weights and (pickled := _pickled(names)):
        raise UnsupportedError(f"{repo} has only {pickled}: {_CONVERT}")
    needs = [("*.safetensors", weights), ("config.json", names)]
    for needed, there in [*needs, ("tokenizer.json", names)] if has_tokenizer else needs:
        if not fnmatch.filter(there, needed):
            raise ModelNotFoundError(
                f"{repo} has no GGUF file, and as a folder of safetensors it lacks {needed}; "
                f"its files: {', '.join(names[:20]) or 'none'}"
            )
    return [name for pattern in _SETTINGS for name in fnmatch.filter(names, pattern)] + weights


def model_in_folder(path: Path) -> Path:
    """The model of a folder: its only GGUF file, or the folder itself for safetensors."""
    names = sorted(file.name for file in path.iterdir())
    everything = _gguf_models(names)
    models = [files for files in everything if not _PREDICTION_BLOCK.search(files[0])] or everything
    if (path / "config.json").is_file() and fnmatch.filter(names, "*.safetensors"):
        if models:
            raise InvalidRequestError(f"{path} holds safetensors and also {_listing(models)}: name the file meant")
        return path
    if not models:
        why = _incomplete(names)
        if "adapter_config.json" in names:
            raise UnsupportedError(f"{path} {_ADAPTER}")
        if pickled := _pickled(names):
            raise UnsupportedError(f"{path} has only {pickled}: {_CONVERT}")
        raise ModelNotFoundError(
            f"{path} is a folder without a {'complete ' if why else ''}GGUF model, and without config.json + "
            f"*.safetensors{why}"
        )
    if len(models) > 1:
        raise InvalidRequestError(f"{path} holds several models: {_listing(models)}; name the file meant")
    return path / models[0][0]


def models_in_folder(path: Path) -> list[Path]:
    """The models of a folder and of the folders in it: GGUF files, and folders of safetensors."""
    folders = [path, *sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))]
    return [model for folder in folders for model in _models_directly_in(folder)]


def _models_directly_in(path: Path) -> list[Path]:
    names = sorted(file.name for file in path.iterdir())
    if (path / "config.json").is_file() and fnmatch.filter(names, "*.safetensors"):
        return [path]
    return [path / files[0] for files in _gguf_models(names) if not _PREDICTION_BLOCK.search(files[0])]


def _pickled(names: Iterable[str]) -> str | None:
    """The first file of PyTorch's pickled weights."""
    return next((name for name in names if fnmatch.fnmatch(name, "*pytorch_model*.bin") or name.endswith(".pth")), None)


def _listing(models: Iterable[list[str]]) -> str:
    return ", ".join(files[0] for files in models)


@contextmanager
def _hub_errors(repo: str, endpoint: str | None, *, offline: bool = False, kind: str = "model") -> Iterator[None]:
    """Translates the client's exceptions into errors that say what was tried, for how long, and how to proceed."""
    server = endpoint or constants.ENDPOINT
    began = time.monotonic()
    try:
        yield
    except GatedRepoError as error:
        raise GatedError(f"{repo} needs its terms accepted at {server}/{repo} and a login (hf auth login)") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(f"{server} has no {kind} {repo}, or it is private (then: hf auth login)") from error
    except (RevisionNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(f"{repo} on {server}: {_first_line(error)}") from error
    except Exception as error:
        # Versions of the client use different HTTP libraries, so a dead connection raises different exceptions.
        if offline:
            raise HubError(
                f"{repo} is not in the cache {constants.HF_HUB_CACHE}, and offline mode is on. What to do: run once "
                f"without it, or {_REMEDY[kind]}"
            ) from error
        if reason := _known_reason(error, server):
            raise HubError(f"could not get {repo} from {server}: {reason}") from error
        raise HubError(
            f"could not get {repo} from {server}: {type(error).__name__}: {_first_line(error)} "
            f"(after {time.monotonic() - began:.1f} s). What to do: check the network and HF_ENDPOINT, use offline "
            f"mode for what is in the cache, or {_REMEDY[kind]}"
        ) from error


def _known_reason(error: Exception, server: str) -> str | None:
    """Why a download failed and what to do, where the client's own text does not say it."""
    is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    if is_full or "no space left on device" in str(error).lower():
        return (
            f"the disk of {constants.HF_HUB_CACHE} is full. What to do: delete models with `lucebox rm MODEL` "
            "(`lucebox models` lists them), or set HF_HOME to a folder on another disk; the download then continues"
        )
    response = getattr(error, "response", None)
    if getattr(response, "status_code", None) == 429:
        wait = str(getattr(response, "headers", {}).get("Retry-After", ""))
        when = f"in {wait} s" if wait.isdecimal() else "in a few minutes"
        return (
            f"the server limits the requests of this address (429). What to do: try again {when}, or log in, which "
            "raises the limit (hf auth login)"
        )
    if getattr(response, "status_code", None) in (502, 503, 504):
        return f"the server is overloaded ({response.status_code}). What to do: try again in a few minutes"  # type: ignore[union-attr]
    if isinstance(error, json.JSONDecodeError):
        return (
            "the answer is not the hub's, perhaps the login page of a network. What to do: open a page in a browser, "
            f"or check that HF_ENDPOINT is right ({server})"
        )
    return None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"


def _bars(repo: str, progress: Progress | None) -> type[Any]:
    """A tqdm class for the client that draws nothing and reports the bar that counts bytes to `progress`."""
    lock = threading.Lock()

    class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # The client makes two byte bars; the one that counts file contents is not named "Downloading".
            self.counts = kwargs.get("unit") == "B" and "Downloading" not in str(kwargs.get("desc"))
            self.done = 0
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})
            self.total = kwargs.get("total")

        def update(self, n: float | None = 1) -> None:
            with lock:
                self.done += int(n or 0)
                if progress is not None and self.counts:
                    progress(f"download {repo}", self.done, int(self.total or 0))

    return Bar
