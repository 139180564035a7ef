"""The HTML report of what can be done with a server: one table for the server, one for this host."""

from __future__ import annotations

from pgsweep.records.doctor import DoctorResult
from pgsweep.ui.doctor_text import AREAS, host_line, label, server_line, word
from pgsweep.ui.section import Cell, Section


def doctor_title(result: DoctorResult) -> tuple[str, str]:
    """Return the headline and the sentence below it."""
    able = sum(ability.available is True for ability in result.abilities)
    return f"{able} of {len(result.abilities)} abilities are there", server_line(result)


def doctor_sections(result: DoctorResult) -> list[Section]:
    """Return one part for the server and one for this host."""
    sections = []
    for area, title in AREAS:
        rows = [
            [
                Cell(label(ability)),
                Cell(word(ability)),
                Cell(ability.why),
                Cell(ability.enable or "", code=ability.enable is not None),
                Cell(", ".join(ability.needed_for)),
            ]
            for ability in result.abilities
            if ability.area == area
        ]
        sections.append(
            Section(
                title=title,
                ident=area,
                lead=host_line(result) if area == "host" else "",
                facts=[],
                figures=[],
                groups=[],
                head=["ability", "available", "why", "command that enables it", "needed for"],
                rows=rows,
                words=True,
            )
        )
    return sections
