"""Hosted services: which one a server belongs to, and where its settings and extensions are changed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg

from pgsweep.errors import PgsweepError
from pgsweep.pg.queries import load

_OFFERED: Final = "CREATE EXTENSION takes what the provider offers, and {name} is not among it"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A value for a setting.

    Attributes:
        value: as the server shows it, with a unit: `4GB`.
        number: the same in the unit of pg_settings; as `value` where the setting has none.
        restart: the setting takes effect at a restart only.
    """

    value: str
    number: str
    restart: bool = False

    @classmethod
    def plain(cls, value: str) -> Wanted:
        """Return a value of a setting without a unit that takes a reload."""
        return cls(value, value)


@dataclass(frozen=True, slots=True)
class Provider:
    """A hosted service.

    Attributes:
        name: as its provider writes it.
        place: where settings are changed, in words and as a command; `{set}` stands for all of them.
        one: one setting of them; `{name}`, `{value}`, `{number}` and `{apply}` stand for it.
        extensions: where an extension that cannot be created yet is allowed; `{name}` stands for it.
        between: what stands between two settings.
        page_cache: behind the buffer pool there is the page cache of Linux; where there is none, or it is not
            known what there is, nothing is predicted of what misses cost.
    """

    name: str
    place: str
    one: str
    extensions: str = _OFFERED
    between: str = " "
    page_cache: bool = True

    def settings(self, wanted: Mapping[str, Wanted]) -> str:
        """Return where settings are changed, as one text for all of them."""
        each = [
            self.one.format(
                name=name,
                value=one.value,
                number=one.number,
                apply="pending-reboot" if one.restart else "immediate",
            )
            for name, one in wanted.items()
        ]
        return self.place.format(set=self.between.join(each))

    def before_creating(self, name: str) -> str | None:
        """Return what may have to be done before CREATE EXTENSION takes an extension that the server lists.

        Returns:
            None where the provider has no list of its own.
        """
        return None if self.extensions == _OFFERED else self.extensions.format(name=name)


# In them a parameter that takes a restart is refused with ApplyMethod=immediate (ModifyDBParameterGroup), and
# --database-flags replaces all flags, so all stand in one command.
PROVIDERS: Final = msgspec.convert(
    tomllib.loads(Path(__file__).with_name("providers.toml").read_text(encoding="utf-8")), dict[str, Provider]
)


def provider_named(name: str | None) -> Provider | None:
    """Return a hosted service by its name."""
    return next((one for one in PROVIDERS.values() if one.name == name), None)


def read_provider(connection: psycopg.Connection[Any]) -> Provider | None:
    """Return which hosted service the server belongs to; None for one's own server, or an unknown one."""
    row = connection.execute(load("provider", connection.info.server_version)).fetchone()
    return None if row is None or row[0] is None else PROVIDERS.get(row[0])


def provider_if_known(connection: psycopg.Connection[Any]) -> Provider | None:
    """Return the same for an error that is about something else: None where the server does not answer."""
    try:
        return read_provider(connection)
    except (psycopg.Error, PgsweepError):
        return None
