"""Derive tests/forms/derived.json from the whole schemas of what reads the forms of `advise --format`.

    python -m tools.form_schemas cnpg=FILE pgo=FILE zalando=FILE stackgres=FILE,FILE compose=FILE

A FILE is a CustomResourceDefinition of an operator, or a JSON schema: one for each document of the form, in
its order. Of the whole schema are kept the facts (types, patterns, required and known fields) of what the
form writes. A field that the whole schema does not know is refused, here and by what is derived, as an API
server refuses it with strict validation. What a manifest needs besides is kept by name (`x-besides`).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from pgsweep.ui.forms import patch
from tests.fix_forms import wanted

OUT: Final = Path(__file__).parent.parent / "tests/forms/derived.json"
_SOURCES: Final = (
    "Derived by tools/form_schemas.py: types, patterns and names of fields of cloudnative-pg (Apache-2.0), "
    "v1.30.0-86-ga95a534db; CrunchyData postgres-operator (Apache-2.0), v6.0.3; zalando postgres-operator "
    "(MIT), v2.0.1-1-ga7aaad0a; StackGres (AGPL-3.0), 1.18.6-28-g085f6d0e4; compose-spec (Apache-2.0), "
    "170098ba07d9."
)
_FACTS: Final = ("type", "pattern", "enum", "format", "minLength", "maxLength", "minimum", "maximum")


def pruned(schema: Any, value: Any, top: Any) -> dict[str, Any]:
    """Return the facts that a schema says of a value.

    Args:
        schema: or a part of it.
        value: what a form writes there.
        top: the whole schema, into which references point.

    Raises:
        KeyError: the schema does not know a field.
    """
    while "$ref" in schema:
        for word in schema["$ref"].split("/"):
            schema = top if word == "#" else schema[word]
    kept: dict[str, Any] = {name: schema[name] for name in _FACTS if name in schema}
    for name in ("anyOf", "oneOf"):
        if name in schema:
            kept[name] = [pruned(one, value, top) for one in schema[name]]
    if isinstance(value, list) and "items" in schema:
        kept["items"] = pruned(schema["items"], value[0], top)
    if isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        kept |= _object(schema, value, top)
    return kept


def _object(schema: Any, value: dict[str, Any], top: Any) -> dict[str, Any]:
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    kept: dict[str, Any] = {"properties": {}, "additionalProperties": False}
    for name, one in value.items():
        if name in known:
            # Huge pages are of either size: a form writes one of them.
            alike = [other for other in known if name.startswith("hugepages-") and other.startswith("huge")]
            kept["properties"] |= {other: pruned(known[other], one, top) for other in sorted({*alike, name})}
        elif found := next((pattern for pattern in patterns if re.search(pattern, name)), None):
            kept["patternProperties"] = {found: pruned(patterns[found], one, top)}
        elif isinstance(others := schema.get("additionalProperties"), dict):
            kept["additionalProperties"] = pruned(others, one, top)
        else:
            raise KeyError(f"{name}: the schema knows {', '.join(sorted(known))}")
    required = set(schema.get("required", ()))
    kept["required"] = sorted(required & value.keys())
    if besides := sorted(required - value.keys()):
        kept["x-besides"] = besides
    return {name: one for name, one in kept.items() if one or name == "additionalProperties"}


def _derived(file: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a file for a document of a form."""
    whole = yaml.load(file.read_text(), yaml.CSafeLoader)
    if whole.get("kind") != "CustomResourceDefinition":
        return pruned(whole, document, whole)
    spec = whole["spec"]
    names = {f"{spec['group']}/{one['name']}": one for one in spec["versions"] if one["served"]}
    schema = names[document["apiVersion"]]["schema"]["openAPIV3Schema"]
    named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    kind = {"type": "string", "enum": [spec["names"]["kind"]]}
    schema["properties"] |= {
        "apiVersion": {"type": "string", "enum": sorted(names)},
        "kind": kind,
        "metadata": named,
    }
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return pruned(schema, document, schema)


def main() -> None:
    """Write the file anew; forms that are not named keep what was derived before."""
    derived = json.loads(OUT.read_text()) | {"$comment": _SOURCES}
    for word in sys.argv[1:]:
        form, _, files = word.partition("=")
        documents = yaml.safe_load_all(patch(wanted(), form))
        derived[form] = [
            _derived(Path(file), one) for file, one in zip(files.split(","), documents, strict=True)
        ]
    OUT.write_text(json.dumps(derived, indent=1) + "\n")


if __name__ == "__main__":
    main()
