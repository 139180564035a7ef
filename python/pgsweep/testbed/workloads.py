"""Workloads: what pgbench is asked to run, as records.

A workload is a pgbench scale, SQL that makes what else it needs, and weighted pgbench scripts. To add one,
write another `Workload`; nothing else knows them by name.

Popularity follows Zipf's law through pgbench's random_zipfian. Its rank 1 is row 1, rank 2 is row 2 and so
on, so that the hot rows would lie side by side on a few pages, which no grown table shows. permute() scatters
the ranks over the whole table, each use with a seed of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

ACCOUNTS_PER_SCALE = 100_000


@dataclass(frozen=True, slots=True)
class Script:
    """One kind of transaction.

    Attributes:
        text: a pgbench script, or the name of a builtin one after `builtin:`.
        weight: how often it is chosen, relative to the workload's other scripts.
    """

    text: str
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """What a few pgbench clients do all the time.

    Attributes:
        name: short, as in `--workload NAME` and in results.
        title: one line for people.
        scripts: the kinds of transactions.
        clients: concurrent sessions.
        setup: SQL statements that make tables of its own, run once after pgbench's own initialisation.
        needs_pgbench_tables: whether it reads pgbench's tables.
    """

    name: str
    title: str
    scripts: tuple[Script, ...]
    clients: int = 4
    setup: tuple[str, ...] = ()
    needs_pgbench_tables: bool = True


def zipf_account(variable: str, exponent: float, seed: int) -> str:
    """Return the script lines that draw an account by Zipf's law, its ranks scattered over the table."""
    accounts = f"{ACCOUNTS_PER_SCALE} * :scale"
    return (
        f"\\set rank random_zipfian(1, {accounts}, {exponent})\n"
        f"\\set {variable} 1 + permute(:rank - 1, {accounts}, {seed})\n"
    )


_READ_ACCOUNT = "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"

ZIPF = Workload(
    name="zipf",
    title="point reads, Zipf 1.08",
    scripts=(Script(zipf_account("aid", 1.08, 11) + _READ_ACCOUNT),),
)

MIX = Workload(
    name="mix",
    title="two Zipfs, uniform reads, inserts",
    scripts=(
        Script(zipf_account("aid", 1.08, 11) + _READ_ACCOUNT, weight=6),
        Script(zipf_account("aid", 1.3, 12) + _READ_ACCOUNT, weight=3),
        Script(f"\\set aid random(1, {ACCOUNTS_PER_SCALE} * :scale)\n" + _READ_ACCOUNT, weight=1),
        Script(
            f"\\set aid random(1, {ACCOUNTS_PER_SCALE} * :scale)\n"
            "\\set delta random(-5000, 5000)\n"
            "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)"
            " VALUES (1, 1, :aid, :delta, CURRENT_TIMESTAMP);\n",
            weight=2,
        ),
    ),
)

# Its first minute is not like the others, for two reasons that the setup removes. A page's first update also
# clears its bit in the visibility map: so every page is updated once. And the plan for the one page of
# pgbench_branches is a sequential scan, whose accesses multiply when a stalled client lets the table grow: so
# the index is used from the start.
TPCB = Workload(
    name="tpcb",
    title="TPC-B (pgbench's default)",
    scripts=(Script("builtin:tpcb-like"),),
    setup=(
        "UPDATE pgbench_accounts SET abalance = 0 WHERE aid % 57 = 1",  # 58 rows are on a page
        "ALTER DATABASE bench SET enable_seqscan = off",
    ),
)

WORKLOADS = (ZIPF, MIX, TPCB)

# The continuous power law, inverted; multiplied by a prime, the ranks are scattered over the rows.
ZIPF_FUNCTION = (
    "CREATE FUNCTION zipf(rows bigint, s float8, prime bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$"
    " SELECT 1 + floor(power(1 + random() * (power(rows, 1 - s) - 1), 1 / (1 - s)))::bigint * prime % rows"
    " $$"
)

# One statement a row would take minutes to fill a pool of gigabytes; one of dozens of rows, seconds. The keys
# of an array are looked up in their order, so that no two sessions wait for one another.
_LARGE_SCRIPT = """\\set rows 100000 * :scale
SELECT sum(abalance) FROM pgbench_accounts
  WHERE aid = ANY (ARRAY(SELECT zipf(:rows, 0.99, 48271003) FROM generate_series(1, 40)));
UPDATE pgbench_accounts SET abalance = abalance + 1
  WHERE aid = ANY (ARRAY(SELECT zipf(:rows, 0.99, 48271003) FROM generate_series(1, 6)));
"""
LARGE = Workload(
    name="large",
    title="reads of 40 rows by Zipf 0.99, with 6 updates",
    scripts=(Script(_LARGE_SCRIPT),),
    setup=(ZIPF_FUNCTION,),
)
