"""Makes the bills of materials (CycloneDX 1.6) inside wheels, in .dist-info/sboms (PEP 770): the components of the
compiled files and their compilers. The same content gives the same bytes: no time and no path is written.

    sbom.py --out FILE --compiler "GNU 13.3.0" nanobind=3.1.0 robin-map=1.4.0      the host wheel's
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import targets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Json = dict[str, Any]

# Libraries in the host wheel, compiled into its module or in the server's page: licence, and the name where it is from.
LIBRARIES = {
    "nanobind": ("BSD-3-Clause", "pkg:pypi/nanobind@{}"),
    "robin-map": ("MIT", "pkg:github/Tessil/robin-map@v{}"),
    "katex": ("MIT", "pkg:npm/katex@{}"),
    "highlight.js": ("BSD-3-Clause", "pkg:npm/%40highlightjs/cdn-assets@{}"),
}
OF_PAGE = {"katex": "0.19.1", "highlight.js": "11.12.0"}  # versions in python/lucebox/serve/static/vendor


def numbered(bill: Json) -> Json:
    """The bill with a serial number derived from its content."""
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bill, sort_keys=True))
    return {**bill, "serialNumber": f"urn:uuid:{number}"}


def dump(value: Json) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def of_wheel(project: str, version: str, compilers: list[Json], components: list[Json], properties: Json) -> Json:
    """The bill of one wheel. Compilers have name and version; `properties` with empty values are left out."""
    subject: Json = {
        "type": "library",
        "bom-ref": project,
        "name": project,
        "version": version,
        "licenses": [{"expression": "Apache-2.0"}],
        "purl": f"pkg:pypi/{project}@{version}",
        "properties": [{"name": f"lucebox:{name}", "value": value} for name, value in properties.items() if value],
    }
    tools = [{"type": "application", "name": one["name"], "version": one["version"]} for one in compilers]
    return numbered(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": subject, "tools": {"components": tools}},
            "components": components,
            "dependencies": [{"ref": project, "dependsOn": [one["bom-ref"] for one in components]}],
        }
    )


def of_pack(manifest: Json) -> Json:
    """The bill of a pack with this manifest."""
    files = [
        {
            "type": "file",
            "bom-ref": file["file"],
            "name": file["file"],
            "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
        }
        for one in manifest["generations"]
        for file in one["files"]
    ]
    compilers = [one["compiler"] for one in manifest["generations"]]
    properties = {
        "target": manifest["target"],
        "variant": manifest["variant"],
        "architecture": manifest["architecture"],
        **{f"{one['name'].replace(' ', '-')}-flags": " ".join(one["flags"]) for one in compilers},
        "commit": manifest["commit"],
    }
    variant = f"-{manifest['variant']}" if manifest["variant"] else ""
    project = f"lucebox-{manifest['target'].replace('_', '')}{variant}"
    return of_wheel(project, manifest["version"], compilers, files, properties)


def library(name: str, version: str) -> Json:
    licence, purl = LIBRARIES[name]
    return {
        "type": "library",
        "bom-ref": name,
        "name": name,
        "version": version,
        "licenses": [{"license": {"id": licence}}],
        "purl": purl.format(version),
    }


def project_version() -> str:
    project: Json = tomllib.loads((targets.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["project"]["version"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the bill of materials of the host wheel.")
    parser.add_argument("libraries", nargs="+", metavar="NAME=VERSION", help=f"of {', '.join(LIBRARIES)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compiler", required=True, help="name and version")
    arguments = parser.parse_args()
    name, _, version = arguments.compiler.rpartition(" ")
    libraries = [library(*text.split("=", 1)) for text in arguments.libraries]
    libraries += [library(*one) for one in OF_PAGE.items()]
    bill = of_wheel("lucebox", project_version(), [{"name": name, "version": version}], libraries, {})
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(dump(bill), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
