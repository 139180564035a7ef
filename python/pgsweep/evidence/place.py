"""Where the server of a recording ran, and who kept its settings: one fact of `host` in meta.json, `place`.

It is the record that all commands show (pgsweep.records.place), as JSON. Evidence that was gathered by psql
names the provider alone, and older evidence nothing.
"""

from __future__ import annotations

import msgspec

from pgsweep.errors import EvidenceError
from pgsweep.evidence.store import EvidenceMeta
from pgsweep.records.place import Place

NAME = "place"


def place_text(place: Place) -> str:
    """Return the record as the text of the fact."""
    return msgspec.json.encode(place).decode()


def place_of(meta: EvidenceMeta) -> Place | None:
    """Return where the server ran; None where the evidence does not say it.

    Raises:
        EvidenceError: what it says is no such record.
    """
    text = meta.host.get(NAME)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Place)
    except msgspec.DecodeError as error:
        raise EvidenceError(
            "the evidence is damaged: `place` in meta.json is no record of a place", cause=str(error)
        ) from error
