"""Names of models on the hub, as users and other tools write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from lucebox.errors import ModelNotFoundError

__all__ = ["HubName", "parse_hub_name"]

_NAME = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+(?:/[\w.-]+)*))?(?::(?P<want>[^:]+))?(?P<file>(?:/[^/:@]+)*)"
)
_LINK = re.compile(r"(?P<scheme>https?|hf)://(?P<rest>.*)", re.I)
_HOSTS = ("huggingface.co/", "www.huggingface.co/", "hf.co/")
_PAGES = ("resolve", "blob", "raw", "tree")  # of a file or a revision: /resolve/REVISION/FILE


@dataclass(frozen=True, slots=True)
class HubName:
    repo: str
    want: str | None = None
    """A quantisation, a file or "safetensors"."""
    revision: str | None = None
    """A branch, a tag or a commit; None: the default branch."""

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        return self.repo + revision + ("" if self.want is None else f":{self.want}")


def parse_hub_name(text: str, *, is_link: Callable[[str], bool] = lambda link: False) -> HubName | None:
    """Reads org/name, org/name@revision, org/name:want, org/name/file.gguf, and links to any of these on the hub. None:
    the text is none of them, such as a path.

    is_link: whether a link without its scheme ("host/path") is to the hub, besides the hub's own hosts.

    Raises:
        ModelNotFoundError: a link to another server.
    """
    rest, is_given_as_link = text.strip(), False
    if link := _LINK.fullmatch(rest):
        is_given_as_link, rest = True, link["rest"]
        if link["scheme"].lower() != "hf" and not rest.lower().startswith(_HOSTS) and not is_link(rest):
            raise ModelNotFoundError(f"{text[:200]} is a link to another server: download the file and give its path")
    host = next((host for host in _HOSTS if rest.lower().startswith(host)), None)
    if host is not None:
        is_given_as_link, rest = True, rest[len(host) :]
    elif is_given_as_link and is_link(rest):
        rest = rest.partition("/")[2]
    if is_given_as_link:
        rest = unquote(re.split(r"[?#]", rest, maxsplit=1)[0])
    found = _NAME.fullmatch(rest.rstrip("/"))
    if found is None or rest.startswith((".", "~")):
        return None
    want, revision = found["want"], found["revision"]
    parts = found["file"].strip("/").split("/") if found["file"] else []
    if is_given_as_link and len(parts) >= 2 and parts[0] in _PAGES:
        revision, parts = parts[1], parts[2:]
    elif not is_given_as_link and want is None and _is_path(rest, parts):
        return None
    if parts:
        want = "/".join(parts)
        if not want.lower().endswith(".gguf"):
            return HubName(found["repo"], "safetensors", revision) if want.endswith(".safetensors") else None
    return HubName(found["repo"], want, None if revision == "main" else revision)


def _is_path(text: str, file: list[str]) -> bool:
    """Whether a name is rather a path on this machine: folder/model.gguf, or a file in a folder that exists."""
    if not file:
        return text.lower().endswith(".gguf")
    return not text.lower().endswith(".gguf") or Path(text).parent.is_dir()
