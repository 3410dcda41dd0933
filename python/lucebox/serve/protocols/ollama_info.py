"""Ollama's informational routes: /api/tags, /api/ps, /api/show, /api/version."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lucebox import __version__
from lucebox.serve.body_route import body_router
from lucebox.serve.model import ServedModel
from lucebox.serve.model_entry import ModelEntry
from lucebox.serve.protocols.ollama_bodies import ShowRequest, name_of
from lucebox.serve.protocols.openapi import OLLAMA_ERRORS, documented
from lucebox.serve.server import server_of

__all__ = ["router"]

NEVER = "9999-12-31T23:59:59Z"  # the model stays loaded
# Ollama's names of sampling parameters.
PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "penalty_window": "repeat_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}

router = body_router()


@router.get("/api/tags", **documented("Lists the models, in Ollama's format.", OLLAMA_ERRORS, streams=False))
async def tags(request: Request) -> Response:
    entries = server_of(request).models.firsts
    return JSONResponse({"models": [_facts(entry) | {"modified_at": _modified_at(entry)} for entry in entries]})


@router.get("/api/ps", **documented("Lists the loaded models, in Ollama's format.", OLLAMA_ERRORS, streams=False))
async def loaded(request: Request) -> Response:
    models = server_of(request).models
    return JSONResponse(
        {
            "models": [
                _facts(entry)
                | {
                    "expires_at": _time(models.expires_at(entry)),
                    "size_vram": 0 if entry.facts.device == "cpu" or entry.info is None else entry.info.file_bytes,
                    "context_length": entry.facts.context,
                }
                for entry in models.firsts
                if models.loaded_replicas(entry)
            ]
        }
    )


@router.post("/api/show", **documented("Describes the model, in Ollama's format.", OLLAMA_ERRORS, streams=False))
async def show(body: ShowRequest, request: Request) -> Response:
    server = server_of(request)
    requested = name_of(body.model or body.name)
    running, _ = await server.use(request, requested)
    entry, model = server.models.find(requested), running.model
    info, template = model.loaded.info, model.loaded.chat_template
    sampling = model.profile.defaults(thinking=model.profile.thinking is not None, tools=False)
    values = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    lines = [f"num_ctx {model.context}", *(f"{name} {values[own]}" for own, name in PARAMETERS.items())]
    return JSONResponse(
        {
            "modelfile": "",
            "parameters": "\n".join(lines),
            "template": template.sources["default"] if template else "",
            "details": _details(entry),
            "model_info": {
                "general.architecture": info.architecture,
                "general.basename": info.name,
                "general.parameter_count": info.n_params,
                f"{info.architecture}.context_length": model.context,
                f"{info.architecture}.embedding_length": info.hidden,
                f"{info.architecture}.block_count": info.n_layers,
                f"{info.architecture}.attention.head_count": info.n_heads,
                f"{info.architecture}.attention.head_count_kv": info.n_kv_heads,
            },
            "capabilities": _capabilities(model),
            "modified_at": _modified_at(entry),
        }
    )


@router.get("/api/version", **documented("The server's version.", OLLAMA_ERRORS, streams=False))
async def version() -> Response:
    return JSONResponse({"version": __version__})


def _facts(entry: ModelEntry) -> dict[str, Any]:
    n_bytes = 0 if entry.info is None else entry.info.file_bytes
    return {"name": entry.name, "model": entry.name, "size": n_bytes, "details": _details(entry)}


def _details(entry: ModelEntry) -> dict[str, Any]:
    """What is known of the model's file: all of it once the model has been loaded."""
    info = entry.info
    details: dict[str, Any] = {"parent_model": "", "context_length": entry.facts.context}
    if info is None:
        return details | {"format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}
    return details | {
        "format": "gguf" if info.path.endswith(".gguf") else "safetensors",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": f"{info.n_params / 1e9:.1f}B" if info.n_params >= 1e9 else f"{info.n_params / 1e6:.1f}M",
        "quantization_level": max(info.quant_mix, key=lambda name: info.quant_mix[name]),
    }


def _capabilities(model: ServedModel) -> list[str]:
    """Abilities under Ollama's names, which clients read before they send tools or `think`."""
    found = ["completion"]
    if model.loaded.embedder.poolings:
        found.append("embedding")
    if model.loaded.chat_template is not None:
        found += ["tools", *(["thinking"] if model.profile.thinking is not None else [])]
        found += ["vision"] if model.loaded.processor is not None else []
    return found


def _modified_at(entry: ModelEntry) -> str:
    return _time(entry.created)


def _time(seconds: float | None) -> str:
    """Unix time as text; None: never."""
    return NEVER if seconds is None else datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
