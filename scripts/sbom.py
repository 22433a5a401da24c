"""Add what Python does not know to a bill of materials: the jars.

Usage: ``python scripts/sbom.py PYTHON.cdx.json VERSION``, which prints the whole.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONF = Path(__file__).resolve().parent.parent / "conf"
# Spark gets the first always, the second for a root or a source on an object store; the third is
# the local broker, for trying things out.
LOCKS = {"jars.lock": "required", "s3.lock": "optional", "kafka-broker.lock": "optional"}


def jars(lock: Path, scope: str) -> Iterator[dict[str, Any]]:
    """Give a component for each line of a lock: coordinates and SHA-256."""
    for line in lock.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        group, artifact, version = words[0].split(":")
        address = f"pkg:maven/{group}/{artifact}@{version}?type=jar"
        yield {
            "type": "library",
            "bom-ref": f"{lock.name}:{words[0]}",
            "group": group,
            "name": artifact,
            "version": version,
            "scope": scope,
            "purl": address,
            "hashes": [{"alg": "SHA-256", "content": words[1].removeprefix("sha256:")}],
        }


def with_jars(document: dict[str, Any], *, version: str, conf: Path = CONF) -> dict[str, Any]:
    """Give the document of a version, with every jar of the locks in their order.

    The locks name what is needed, not by whom: everything hangs on the package itself.
    """
    found = [jar for name, scope in LOCKS.items() for jar in jars(conf / name, scope)]
    components = [*document["components"], *found]
    package = document["metadata"]["component"] | {"version": version}
    needed = sorted(one["bom-ref"] for one in components)
    return document | {
        "metadata": document["metadata"] | {"component": package},
        "components": components,
        "dependencies": [
            {"ref": package["bom-ref"], "dependsOn": needed},
            *({"ref": one} for one in needed),
        ],
    }


def main() -> None:
    """Print the whole document, or say what breaks CycloneDX's schema and exit 1."""
    # Among the release's tools, and not where the tests run.
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    whole = with_jars(document, version=sys.argv[2])
    text = json.dumps(whole, indent=2, sort_keys=True) + "\n"
    schema = SchemaVersion.from_version(document["specVersion"])
    problem = JsonStrictValidator(schema).validate_str(text)
    if problem is not None:
        sys.exit(f"sbom: {problem}")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
