"""How should this PostgreSQL server's memory be used? Answers with evidence.

    import pgsweep

    pgsweep.record("dbname=shop", Path("shop.evidence"), seconds=60)
    result = pgsweep.predict(Path("shop.evidence"), sizes_bytes=[1 << 30, 2 << 30])
    print(result.verdict.level, result.points)

The commands that give a result are functions here: typed arguments in, a record (`pgsweep.records`) out.
docs/reference/python.md lists them, and what there is on the command line only.
Names are loaded when they are first used, because all of them together take half a second.
"""

from __future__ import annotations

from importlib import import_module

_PLACES = {
    "_native": "__version__",
    "advice.ask": "advise",
    "api": (
        "examine_server huge_pages inspect_cache inspect_memory load_compare load_plan load_run "
        "memory_budget sample_load warm_check warm_keep warm_plan warm_restore warm_run warm_save"
    ),
    "cache.footprint": "footprint",
    "errors": (
        "ClusterError ConnectionFailed EvidenceError HeatError MissingAbility PgsweepError "
        "UnexpectedAnswer UsageError"
    ),
    "evidence.gathered": "import_gathered",
    "evidence.oracle_export": "export_oracle_general",
    "evidence.oracle_general": "read_oracle_general",
    "evidence.reader": "Evidence",
    "evidence.record": "plan_record record",
    "evidence.script": "record_script",
    "lab.catalog": "list_experiments:lab_list",
    "lab.compare": "compare:lab_compare",
    "lab.every": "run_every:lab_run_all",
    "lab.chosen": "run_lab:lab_run",
    "load.options": "LoadOptions",
    "load.loading": "keep_as_is:load_keep_as_is resume:load_resume roll_back:load_rollback",
    "memory.kernel": "examine:kernel_settings",
    "sizing.demo": "run_demo:demo",
    "sizing.predict": "predict",
    "sizing.prove": "prove",
    "sizing.verify": "verify",
    "warm.heat.file": "read_heat",
    "warm.heat.restore_plan": "RestoreOptions",
    "warm.keep.keep": "KeepOptions",
    "warm.run.gather": "Selection",
    "warm.run.prepare": "WarmOptions",
}
"""By module of pgsweep its public names; after a colon the name by which one is public, where that differs.
`__init__.pyi` has the same for type checkers."""

_FOUND = {
    public or name: (module, name)
    for module, names in _PLACES.items()
    for name, _, public in (word.partition(":") for word in names.split())
}
__all__ = sorted(_FOUND)  # noqa: PLE0605 (a list of names, which ruff cannot see)


def __getattr__(name: str) -> object:
    """Load a name when it is first used."""
    if name not in _FOUND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, original = _FOUND[name]
    value = getattr(import_module(f"pgsweep.{module}"), original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
