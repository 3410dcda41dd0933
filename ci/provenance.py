"""Provenance objects (PEP 740) of the index, from the attestations that GitHub keeps for each wheel.

`gh attestation download WHEEL` writes sha256:<hash of the wheel>.jsonl: a Sigstore bundle per line. PEP 740 takes an
attestation of one file, with a certificate and an entry of the public log; bundles of several files, which the release
makes too, are left out. Nothing is verified here: `gh attestation verify` does, and so does whoever installs.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path, PurePosixPath

from sbom import Json
from wheels import Wheel

SLSA = "https://slsa.dev/provenance/v1"


class ProvenanceError(Exception):
    """A wheel has no attestation that an index may show."""


def provenance(wheel: Wheel, folder: Path) -> Json:
    """The provenance object of a wheel, from the bundles of this folder.

    Raises:
        ProvenanceError: there is none, or it is of another file.
    """
    file = folder / f"sha256:{wheel.sha256}.jsonl"
    if not file.exists():
        raise ProvenanceError(f"{wheel.path.name}: {folder} has no {file.name}: `gh attestation download` makes it")
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    single = [bundle for bundle in found if len(statement(bundle)["subject"]) == 1]
    if not single:
        raise ProvenanceError(f"{wheel.path.name}: {file.name} has no attestation of this file alone")
    return {"version": 1, "attestation_bundles": [attestation_bundle(wheel, bundle) for bundle in single]}


def attestation_bundle(wheel: Wheel, bundle: Json) -> Json:
    said = statement(bundle)
    (subject,) = said["subject"]
    expected = (wheel.path.name, wheel.sha256)
    if (subject["name"], subject["digest"].get("sha256")) != expected:
        raise ProvenanceError(f"{wheel.path.name}: its attestation is of {subject['name']}, or of other bytes")
    if said["predicateType"] != SLSA:
        raise ProvenanceError(f"{wheel.path.name}: expected an attestation of type {SLSA}, got {said['predicateType']}")
    return {"publisher": publisher(said), "attestations": [attestation(wheel, bundle)]}


def statement(bundle: Json) -> Json:
    """What a bundle says of which files: an in-toto statement."""
    found: Json = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    return found


def publisher(said: Json) -> Json:
    """The workflow that made the file, as a trusted publisher of PyPI is named."""
    workflow = said["predicate"]["buildDefinition"]["externalParameters"]["workflow"]
    return {
        "kind": "GitHub",
        "repository": workflow["repository"].removeprefix("https://github.com/"),
        "workflow": PurePosixPath(workflow["path"]).name,
        "environment": None,
    }


def attestation(wheel: Wheel, bundle: Json) -> Json:
    material, envelope = bundle["verificationMaterial"], bundle["dsseEnvelope"]
    if not material.get("tlogEntries"):
        raise ProvenanceError(f"{wheel.path.name}: its attestation is in no public log: the repository is private")
    (signature,) = envelope["signatures"]
    return {
        "version": 1,
        "verification_material": {
            "certificate": material["certificate"]["rawBytes"],
            "transparency_entries": material["tlogEntries"],
        },
        "envelope": {"statement": envelope["payload"], "signature": signature["sig"]},
    }
