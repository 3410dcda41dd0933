"""resolve: paths, catalog names, and hub ids against the real hub client talking to a small server on this machine."""

from __future__ import annotations

import errno
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
import tiny_vl
from huggingface_hub import constants
from lucebox.errors import HubError, InvalidRequestError, ModelNotFoundError, UnsupportedError
from lucebox.models import hub
from lucebox.models.resolve import resolve
from lucebox.models.vision import fetch_tower
from text_data import TINY_HYBRID

COMMIT = "a" * 40
BIG = bytes(range(256)) * 4096
GGUF = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "mmproj-m-F16.gguf", "README.md"]
SPLIT = ["UD/m-q2_k-00001-of-00002.gguf", "UD/m-q2_k-00002-of-00002.gguf", "m-IQ4_XS-00001-of-00003.gguf"]
FOLDER = [
    "config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    "model.safetensors.index.json", "pytorch_model.bin", "onnx/model.safetensors", "flax_model.msgpack",
]  # fmt: skip
UNSLOTH = [
    "Q-UD-Q4_K_XL.gguf", "Q-Q4_K_M.gguf", "Q-UD-IQ2_M.gguf", "Q-BF16.gguf", "mmproj-BF16.gguf", "Q-Q8_0-mmproj.gguf",
    "imatrix_unsloth.gguf", "MTP/Q-MTP-Q8_0.gguf", "UD-Q8_K_XL/Q-UD-Q8_K_XL-00001-of-00002.gguf",
    "UD-Q8_K_XL/Q-UD-Q8_K_XL-00002-of-00002.gguf",
]  # fmt: skip
MRADERMACHER = ["M.i1-Q4_K_M.gguf", "M.i1-IQ1_S.gguf", "M.imatrix.gguf", "M.mmproj-f16.gguf"]
TEMPLATES = [
    "config.json", "tokenizer.json", "model.safetensors", "special_tokens_map.json", "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja", "README.md",
]  # fmt: skip
EMBEDDER = [
    "config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling/config.json",
    "config_sentence_transformers.json", "2_Dense/config.json", "2_Dense/model.safetensors",
    "2_Dense/pytorch_model.bin", "onnx/config.json", "README.md",
]  # fmt: skip
MODULES = [
    {"type": "x.Transformer", "path": ""},
    {"type": "x.Pooling", "path": "1_Pooling"},
    {"type": "y.Dense", "path": "2_Dense"},
]
REPOS = {
    "org/embedder": EMBEDDER,
    "org/pickled": ["config.json", "tokenizer.json", "pytorch_model-00001-of-00002.bin"],
    "org/adapter": ["adapter_config.json", "adapter_model.safetensors", "README.md"],
    "org/portal": GGUF,
    "org/limited": GGUF,
    "org/busy": GGUF,
    "org/unsloth": UNSLOTH,
    "org/mradermacher": MRADERMACHER,
    "org/templates": TEMPLATES,
    "org/heads": ["Q-mtp-Q8_0.gguf"],
    "org/lacking": SPLIT[2:],
    "org/gguf": GGUF,
    "org/split": SPLIT,
    "org/folder": FOLDER,
    "org/both": [*GGUF, *FOLDER],
    "org/twice": ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"],
    "org/bare": ["weights.gguf"],
    "org/none": ["README.md"],
    "org/eyes": ["Q8/tiny-vl.Q8_0.gguf", "mmproj-F32.gguf", "mmproj-BF16.gguf", "other-mmproj-BF16.gguf", "README.md"],
    "org/cut-eyes": ["Q8/tiny-vl.Q8_0.gguf", "mmproj-BF16.gguf"],
    "org/drafter": ["config.json", "model.safetensors", "drafter.py"],
    "org/questions": ["README.md", "main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet"],
}


def content(name: str) -> bytes:
    if name == "modules.json":
        return json.dumps(MODULES).encode()
    if name == "Q8/tiny-vl.Q8_0.gguf":
        return tiny_vl.MODEL.read_bytes()
    if name == "mmproj-BF16.gguf":
        return tiny_vl.MMPROJ.read_bytes()
    return BIG if name.endswith((".gguf", ".safetensors")) else b"{}"


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's protocol that downloads use."""

    requests: list[str] = []  # noqa: RUF012
    cut_after: int | None = None
    refuses = True

    def do_GET(self) -> None:
        repo = next((repo for repo in REPOS if f"/{repo}/" in self.path + "/"), None)
        path = self.path.split("?")[0]
        Hub.requests.append(f"{self.command} {path}")
        if repo is None:
            self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif repo in ("org/limited", "org/busy") and Hub.refuses:
            self.answer(429 if repo == "org/limited" else 503, b"{}", {"Retry-After": "7"})
        elif repo == "org/portal":
            self.answer(200, b"<html>please log in</html>", {"Content-Type": "text/html"})
        elif repo == "org/cut-eyes" and "mmproj" in path:
            self.answer(403, b"{}")
        elif "/tree/" in path:
            tree = [{"type": "file", "path": n, "size": len(content(n)), "oid": "b" * 40} for n in REPOS[repo]]
            self.answer(200, json.dumps(tree).encode())
        elif path.startswith(("/api/models/", "/api/datasets/")):
            info = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in REPOS[repo]]}
            self.answer(200, json.dumps(info).encode())
        else:
            name = unquote(path).split(f"/{COMMIT}/", 1)[1]
            is_large = repo == "org/eyes"  # the hub names a large file by its hash
            etag = hashlib.sha256(content(name)) if is_large else hashlib.sha1(name.encode())
            self.file(content(name), etag.hexdigest())

    do_HEAD = do_GET

    def file(self, data: bytes, etag: str) -> None:
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            Hub.requests.append(f"from {start}")
        self.answer(206 if start else 200, data[start:], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            cut, Hub.cut_after = (Hub.cut_after, None) if body.startswith(BIG[:64]) else (None, Hub.cut_after)
            self.wfile.write(body[:cut])
            if cut is not None:
                self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub-cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    Hub.requests.clear()
    return cache


def names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("org/gguf", "m-Q4_K_M.gguf"),
        ("org/gguf:q8_0", "m-Q8_0.gguf"),
        ("org/gguf:m-Q4_K_S.gguf", "m-Q4_K_S.gguf"),
        ("org/both", "m-Q4_K_M.gguf"),
        ("org/bare", "weights.gguf"),
        ("org/split:Q2_K", "UD/m-q2_k-00001-of-00002.gguf"),
        ("org/split", "UD/m-q2_k-00001-of-00002.gguf"),
    ],
)
def test_gguf(server: str, model: str, file: str) -> None:
    found = resolve(model, endpoint=server)
    assert (found.source, found.name) == ("hub", model)
    assert found.path.as_posix().endswith(f"/{COMMIT}/{file}")
    assert found.path.read_bytes() == BIG
    folder = Path(found.path.as_posix().removesuffix(file))
    assert names_in(folder) == (SPLIT[:2] if "split" in model else [file])


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("org/unsloth", "Q-Q4_K_M.gguf"),
        ("org/unsloth:UD-Q4_K_XL", "Q-UD-Q4_K_XL.gguf"),
        ("org/unsloth:Q4_K_XL", "Q-UD-Q4_K_XL.gguf"),
        ("org/unsloth:ud-iq2_m", "Q-UD-IQ2_M.gguf"),
        ("org/unsloth:BF16", "Q-BF16.gguf"),
        ("org/unsloth:UD-Q8_K_XL", UNSLOTH[-2]),
        ("org/unsloth:Q-UD-Q8_K_XL.gguf", UNSLOTH[-2]),
        ("org/unsloth:Q-UD-Q8_K_XL-00002-of-00002.gguf", UNSLOTH[-2]),
        ("org/unsloth:Q-UD-Q4_K_XL", "Q-UD-Q4_K_XL.gguf"),
        ("org/unsloth:Q-MTP-Q8_0.gguf", "MTP/Q-MTP-Q8_0.gguf"),
        ("org/mradermacher", "M.i1-Q4_K_M.gguf"),
        ("org/mradermacher:i1-Q4_K_M", "M.i1-Q4_K_M.gguf"),
        ("org/mradermacher:IQ1_S", "M.i1-IQ1_S.gguf"),
        ("org/mradermacher:M.i1-IQ1_S.gguf", "M.i1-IQ1_S.gguf"),
    ],
)
def test_names_of_files(server: str, model: str, file: str) -> None:
    found = resolve(model, endpoint=server)
    assert found.path.as_posix().endswith(f"/{COMMIT}/{file}")
    assert len(names_in(Path(found.path.as_posix().removesuffix(file)))) == (2 if "of-" in file else 1)


def test_a_prediction_block_may_be_named_as_a_drafter(server: str) -> None:
    assert resolve("org/heads", endpoint=server, is_drafter=True).path.name == "Q-mtp-Q8_0.gguf"
    named = resolve("org/unsloth:MTP/Q-MTP-Q8_0.gguf", endpoint=server, is_drafter=True)
    assert named.path.name == "Q-MTP-Q8_0.gguf"


def test_files_beside_the_weights(server: str) -> None:
    assert names_in(resolve("org/templates", endpoint=server).path) == sorted(TEMPLATES[:-1])


def test_the_projector_of_a_model(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve("org/eyes", endpoint=server)
    unreachable = "http://127.0.0.1:9"
    without = resolve("org/eyes", endpoint=unreachable), resolve("org/eyes", offline=True)
    Hub.requests.clear()
    assert [fetch_tower(None, found, endpoint=server) for found in without] == [None, None]
    assert Hub.requests == []  # a hub that did not answer is not asked again
    found = resolve("org/eyes", endpoint=server)
    assert fetch_tower("none", found, endpoint=server) is None
    Hub.requests.clear()
    tower = Path(str(fetch_tower(None, found, endpoint=server)))
    about = [request for request in Hub.requests if request.startswith("GET /api/models/org/eyes")]
    assert about == ["GET /api/models/org/eyes/revision/main"]  # the client's own question, with the download
    assert tower == found.path.parents[1] / "mmproj-BF16.gguf" and tower.read_bytes() == tiny_vl.MMPROJ.read_bytes()
    assert names_in(tower.parent) == ["Q8/tiny-vl.Q8_0.gguf", "mmproj-BF16.gguf"]
    Hub.requests.clear()
    assert fetch_tower(None, found, endpoint=server) == str(tower) and Hub.requests == []


def test_damage_in_the_cache_is_found(server: str) -> None:
    """A verified file that changed since is verified again, with and without network."""
    found = resolve("org/eyes", endpoint=server)
    tower = Path(str(fetch_tower(None, found, endpoint=server)))
    offline = resolve("org/eyes", offline=True)
    assert fetch_tower(None, offline) == str(tower)

    def damage(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.resolve().write_bytes(data)

    damage(tower)
    for one in (found, offline):
        with pytest.raises(HubError, match=r"has sha256 .*`lucebox rm org/eyes` deletes it; --mmproj none loads"):
            fetch_tower(None, one, endpoint=server)
    damage(found.path)
    for options in ({"endpoint": server}, {"offline": True}):
        with pytest.raises(HubError, match=r"has sha256 .*`lucebox rm org/eyes` deletes it"):
            resolve("org/eyes", **options)


def test_a_projector_that_cannot_be_downloaded(server: str) -> None:
    found = resolve("org/cut-eyes", endpoint=server)
    with pytest.raises(HubError, match=r"org/cut-eyes.*; --mmproj none loads the model without its vision tower"):
        fetch_tower(None, found, endpoint=server)


def test_the_modules_of_an_embedder(server: str) -> None:
    assert names_in(resolve("org/embedder", endpoint=server).path) == sorted(EMBEDDER[:8])


@pytest.mark.parametrize("model", ["org/folder", "org/both:safetensors"])
def test_safetensors_take_only_what_is_needed(server: str, model: str) -> None:
    found = resolve(model, endpoint=server)
    assert names_in(found.path) == sorted(FOLDER[:5])


def test_a_drafter_needs_no_tokenizer(server: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"org/drafter .*lacks tokenizer.json"):
        resolve("org/drafter", endpoint=server)
    found = resolve("org/drafter", endpoint=server, is_drafter=True)
    assert names_in(found.path) == ["config.json", "model.safetensors"]


def test_a_file_of_a_data_set(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = "main/test-*.parquet"
    file = hub.fetch_data("org/questions", pattern, endpoint=server)
    assert file.as_posix().endswith(f"/{COMMIT}/main/test-00000-of-00001.parquet")
    assert file.read_bytes() == content("main/test-00000-of-00001.parquet")
    assert not any("train" in request for request in Hub.requests)
    assert hub.fetch_data("org/questions", pattern, endpoint=server, offline=True) == file
    with pytest.raises(HubError, match=r"org/questions on the hub: dev/\* is not in the cache"):
        hub.fetch_data("org/questions", "dev/*", endpoint=server, offline=True)
    with pytest.raises(ModelNotFoundError, match=r"org/questions has no file dev/\*; its files: README.md, main/train"):
        hub.fetch_data("org/questions", "dev/*", endpoint=server)
    with pytest.raises(ModelNotFoundError, match="has no data set org/unknown"):
        hub.fetch_data("org/unknown", pattern, endpoint=server)
    with pytest.raises(HubError, match=r"org/absent is not in the cache.*offline mode.*as a file of JSON lines"):
        hub.fetch_data("org/absent", pattern, endpoint=server, offline=True)


def test_progress_and_the_second_time(server: str) -> None:
    calls: list[tuple[str, int, int]] = []
    resolve("org/gguf", endpoint=server, progress=lambda *call: calls.append(call))
    assert calls[-1] == ("download org/gguf", len(BIG), len(BIG))
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    Hub.requests.clear()
    resolve("org/gguf", endpoint=server)
    assert not any(request.startswith("GET") and "resolve" in request for request in Hub.requests)


def test_a_broken_download_goes_on_where_it_was(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)  # the client keeps whole chunks, of 10 MB otherwise
    Hub.cut_after = 300_000
    assert resolve("org/bare", endpoint=server).path.read_bytes() == BIG
    assert any(request.startswith("from ") for request in Hub.requests)


@pytest.mark.parametrize("by_setting", [False, True])
def test_offline(server: str, by_setting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve("org/gguf:q8_0", endpoint=server)
    Hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", by_setting)
    found = resolve("org/gguf", offline=not by_setting, endpoint=server)
    assert found.path.name == "m-Q8_0.gguf"
    with pytest.raises(HubError, match=r"org/folder.*offline mode"):
        resolve("org/folder", offline=not by_setting, endpoint=server)
    assert not Hub.requests


def test_cached_models(server: str) -> None:
    assert hub.cached() == {}
    resolve("org/gguf", endpoint=server)
    assert list(hub.cached()) == ["org/gguf"]


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("org/gguf:Q3_K_L", ModelNotFoundError, "no GGUF file for 'Q3_K_L'; it has m-Q4_K_M.gguf"),
        ("org/twice", InvalidRequestError, "a-Q4_K_M.gguf, b-Q4_K_M.gguf; say org/twice:FILE"),
        ("org/none", ModelNotFoundError, "README.md"),
        ("org/heads", ModelNotFoundError, "has no GGUF file"),
        ("org/unsloth:mmproj-BF16.gguf", InvalidRequestError, "not a model but a vision projector"),
        ("org/unsloth:MXFP4", ModelNotFoundError, "no GGUF file for 'MXFP4'; it has Q-BF16.gguf"),
        ("org/lacking:IQ4_XS", ModelNotFoundError, "of m-IQ4_XS part 2, 3 of 3 is missing"),
        ("org/gguf:safetensors", ModelNotFoundError, r"lacks \*.safetensors"),
        ("org/unknown", ModelNotFoundError, "has no model org/unknown"),
    ],
)
def test_hub_refusals(server: str, model: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve(model, endpoint=server)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("org/pickled", UnsupportedError, "only pytorch_model-00001-of-00002.bin: pickled weights .* safetensors"),
        ("org/adapter", UnsupportedError, "is a LoRA adapter, not a model; merge it"),
        ("https://example.com/org/gguf", ModelNotFoundError, "a link to another server"),
    ],
)
def test_repositories_without_a_model(server: str, model: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve(model, endpoint=server)


@pytest.mark.parametrize(
    ("model", "repo", "file"),
    [
        ("hf.co/org/gguf:Q8_0", "org/gguf:Q8_0", "m-Q8_0.gguf"),
        ("https://huggingface.co/org/gguf", "org/gguf", "m-Q4_K_M.gguf"),
        ("https://huggingface.co/org/gguf/blob/main/m-Q8_0.gguf", "org/gguf:m-Q8_0.gguf", "m-Q8_0.gguf"),
        ("huggingface.co/org/unsloth/resolve/main/MTP/Q-MTP-Q8_0.gguf?download=true", "org/unsloth:MTP/Q-MTP-Q8_0.gguf",
         "MTP/Q-MTP-Q8_0.gguf"),
        ("hf://org/gguf/", "org/gguf", "m-Q4_K_M.gguf"),
        ("org/gguf/", "org/gguf", "m-Q4_K_M.gguf"),
        ("org/gguf/m-Q8_0.gguf", "org/gguf:m-Q8_0.gguf", "m-Q8_0.gguf"),
        ("org/gguf@main", "org/gguf", "m-Q4_K_M.gguf"),
        ("org/gguf@v1.0:Q8_0", "org/gguf@v1.0:Q8_0", "m-Q8_0.gguf"),
        ("org/gguf@refs/pr/1", "org/gguf@refs/pr/1", "m-Q4_K_M.gguf"),
    ],
)  # fmt: skip
def test_names_as_other_tools_write_them(server: str, model: str, repo: str, file: str) -> None:
    Hub.requests.clear()
    found = resolve(model, endpoint=server)
    assert (found.source, found.name) == ("hub", repo) and found.path.as_posix().endswith(f"/{COMMIT}/{file}")
    revision = repo.partition("@")[2].partition(":")[0]
    assert not revision or any(f"/revision/{quote(revision, safe='')}" in request for request in Hub.requests)
    assert resolve(model, endpoint=server, offline=True).path == found.path


def test_a_cached_model_needs_no_network(server: str) -> None:
    found = resolve("org/gguf:Q8_0", endpoint=server)
    assert resolve("org/gguf:Q8_0", endpoint="http://127.0.0.1:9").path == found.path
    assert resolve("org/gguf", endpoint="http://127.0.0.1:9").path == found.path  # the only one that is here
    with pytest.raises(HubError, match="could not get org/gguf from"):
        resolve("org/gguf:Q4_K_M", endpoint="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("repo", "message"),
    [
        ("org/portal", "not the hub's, perhaps the login page"),
        ("org/limited", r"limits the requests .*\(429\).* in 7 s, or log in"),
        ("org/busy", r"overloaded \(503\)"),
    ],
)
def test_a_hub_that_refuses_for_a_while(server: str, repo: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match=message):
        resolve(repo, endpoint=server)
    if repo == "org/portal":
        return
    monkeypatch.setattr(Hub, "refuses", False)
    found = resolve(repo, endpoint=server)
    monkeypatch.setattr(Hub, "refuses", True)
    assert resolve(repo, endpoint=server).path == found.path


def test_a_full_disk(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hub.huggingface_hub, "snapshot_download", full)
    with pytest.raises(HubError, match=r"disk of .* is full\. .*`lucebox rm MODEL`"):
        resolve("org/gguf", endpoint=server)


def test_folders_without_a_model(tmp_path: Path) -> None:
    for files, message in (
        (("adapter_config.json", "adapter_model.safetensors"), "is a LoRA adapter, not a model"),
        (("config.json", "pytorch_model.bin"), "has only pytorch_model.bin: pickled weights"),
    ):
        folder = tmp_path / files[0]
        folder.mkdir()
        for name in files:
            (folder / name).write_text("{}")
        with pytest.raises(UnsupportedError, match=message):
            resolve(str(folder))


def test_a_damaged_download(server: str) -> None:
    file = resolve("org/bare", endpoint=server).path
    blob = file.parent / ("0" * 64)  # the name of a large file is its hash
    blob.write_bytes(b"other")
    with pytest.raises(HubError, match=r"expected 0+.*`lucebox rm org/bare` deletes it"):
        hub.check("org/bare", blob, None)


def test_unreachable_hub() -> None:
    began = time.monotonic()
    with pytest.raises(
        HubError, match=r"could not get org/gguf from http://127.0.0.1:9: .* s\).*offline.*lucebox models"
    ):
        resolve("org/gguf", endpoint="http://127.0.0.1:9")
    assert time.monotonic() - began < 30


def test_paths(tmp_path: Path) -> None:
    found = resolve(str(TINY_HYBRID))
    assert (found.path, found.source, found.name) == (TINY_HYBRID, "path", "tiny-hybrid.Q8_0")
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelNotFoundError, match="without a GGUF model"):
        resolve("./model")
    (folder / "a-00001-of-00002.gguf").touch()
    (folder / "a-00002-of-00002.gguf").touch()
    assert resolve("model").path.name == "a-00001-of-00002.gguf"
    (folder / "b.gguf").touch()
    with pytest.raises(InvalidRequestError, match=r"several models: a-00001-of-00002.gguf, b.gguf"):
        resolve("model")
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    with pytest.raises(InvalidRequestError, match="safetensors and also"):
        resolve("model")
    for file in folder.glob("*.gguf"):
        file.unlink()
    assert resolve(str(folder)).path == folder


@pytest.mark.parametrize("model", ["nothing", "./nothing.gguf", "a/b.gguf", "~/nothing", "a/b/c", "", "a b/c"])
def test_neither_path_nor_name(model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="catalog name"):
        resolve(model or "/nothing/at/all")


def test_catalog_name(tmp_path: Path) -> None:
    found = resolve("tiny-hybrid", offline=True)
    assert (found.source, found.name, found.path.name) == ("catalog", "tiny-hybrid", "tiny-hybrid.Q8_0.gguf")
    (tmp_path / "tiny-hybrid").mkdir()
    with pytest.raises(InvalidRequestError, match=r"catalog:tiny-hybrid or ./tiny-hybrid"):
        resolve("tiny-hybrid")
    assert resolve("catalog:tiny-hybrid").path == found.path
