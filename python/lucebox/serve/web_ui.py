"""The page at "/": static files of the package, with a strict content security policy. `static/vendor` has the
libraries of others that it uses, each with its licence."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from lucebox.serve.errors import ApiError

__all__ = ["STATIC", "is_page", "router"]

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parent / "static"
STATIC = "/static/"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".woff2": "font/woff2",
}
FILES = {file.relative_to(FOLDER).as_posix(): file for file in FOLDER.rglob("*") if file.suffix in TYPES}
HEADERS = {
    # Allows only the page's own scripts, styles, fonts and server; forbids framing by other sites.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def is_page(path: str) -> bool:
    """Whether the path is a static file of the page. These need no API key; the data they fetch does."""
    return path == "/" or path.startswith(STATIC)


@router.get("/")
async def index() -> Response:
    return _file("index.html")


@router.get(STATIC + "{name:path}")
async def static(name: str) -> Response:
    return _file(name)


def _file(name: str) -> Response:
    file = FILES.get(name)
    if file is None:
        raise ApiError("not_found", f"the page has no file {name!r}")
    return FileResponse(file, headers=HEADERS | {"content-type": TYPES[file.suffix]})
