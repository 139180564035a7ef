"""Advice in the form in which it is applied where the server runs: one table, one writer.

A form is a frame of lines. `{settings}` stands for the settings, on a line of its own for one below the
other, each under its reasons. A line that ends in `<memory>`, `<huge>`, `<shm>` or `<settings>` (or several,
as in `<memory|huge>`) is there only where one of these is known and to be set, and says what it is for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from pgsweep.records.advice import AdviceResult, AdvisedSetting, Resources
from pgsweep.ui.advised import ACTIONS, about, comment, sentence
from pgsweep.ui.numbers import format_bytes
from pgsweep.units import SETTING_UNITS, as_setting, huge_page_word, in_unit, parse_bytes

_GUARD: Final = re.compile(r" *<([a-z|]+)>$")
_MB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How advice is written for one kind of place.

    Attributes:
        frame: the lines; see above.
        setting: one setting, in one or several lines; `{name}`, `{value}` and `{apply}` stand for it.
        how: how it is applied.
        mark: what begins a comment.
        between: what stands between two settings.
        number: values are numbers in the unit of pg_settings, as the form takes no unit.
        apart: comments stand before the frame, as none can stand in it.
        own: the form of a server whose settings nobody else keeps: for others it is comments only.
        hosted: nobody but the provider sets anything on the host.
        page_cache: behind the pool there is a page cache of Linux.
        shares: the least and the largest share of the instance's memory that the provider takes, by setting.
        kernel: one setting of the kernel.
        reload: what makes settings take effect that take a reload.
        instead: of `memory`, `huge` and `shm`: what is done where the frame cannot hold them.
    """

    frame: str
    setting: str
    how: str = ""
    mark: str = "#"
    between: str = "\n"
    number: bool = False
    apart: bool = False
    own: bool = False
    hosted: bool = False
    page_cache: bool = True
    shares: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    kernel: str = "# on the nodes, before the pods start: sudo sysctl -w {name}={value}"
    reload: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)


_ON_HOST: Final = "on the host, before the restart: sudo sysctl -w {name}={value}"
_CONTAINED: Final = {
    "memory": "for its container or unit: {memory} of memory ({memory_bytes} bytes)",
    "huge": "for its container or unit: {huge_pages} huge pages of {huge_size}",
    "shm": "for its container: /dev/shm of {shm}",
}
_HOSTED: Final = {"memory": "the instance: one with at least {memory} of memory"}
_RESOURCES: Final = """\
{at}resources: <memory|huge>
{at}  requests: <memory|huge>
{at}    memory: "{{memory}}" <memory>
{at}    hugepages-{{huge_word}}: "{{huge}}" <huge>
{at}  limits: <memory|huge>
{at}    memory: "{{memory}}" <memory>
{at}    hugepages-{{huge_word}}: "{{huge}}" <huge>"""
_MANIFEST: Final = "Merge it into the manifest; "
_RDS: Final = (
    "aws rds modify-db-{{of}}parameter-group --db-{{of}}parameter-group-name GROUP \\\n  --parameters \\\n"
    "  {settings}"
)


def _parameter_group(of: str, *, page_cache: bool) -> Form:
    return Form(
        frame=_RDS.replace("{{of}}", of),
        setting='"ParameterName={name},ParameterValue={value},ApplyMethod={apply}"',
        between=" \\\n",
        how="For a shell. What is pending-reboot takes effect when the instance is rebooted.",
        number=True,
        apart=True,
        hosted=True,
        page_cache=page_cache,
        instead=_HOSTED,
    )


FORMS: Final[Mapping[str, Form]] = {
    "alter-system": Form(
        frame="{settings}",
        setting="ALTER SYSTEM SET {name} = '{value}';",
        mark="--",
        own=True,
        kernel=f"# {_ON_HOST}",
        reload="SELECT pg_catalog.pg_reload_conf();",
        instead=_CONTAINED,
    ),
    "postgresql.conf": Form(
        frame="{settings}",
        setting="{name} = '{value}'",
        own=True,
        kernel=f"# {_ON_HOST}",
        instead=_CONTAINED,
    ),
    "patroni": Form(
        frame="postgresql: <settings>\n  parameters: <settings>\n    {settings}",
        setting='{name}: "{value}"',
        how="Save it and run: patronictl edit-config --apply FILE; then restart what says so: "
        "patronictl restart CLUSTER. Patroni keeps the order of primary and standbys.",
        kernel="# on every member's host, before the restart: sudo sysctl -w {name}={value}",
        instead=_CONTAINED,
    ),
    "cnpg": Form(
        frame="apiVersion: postgresql.cnpg.io/v1\nkind: Cluster\nmetadata:\n  name: CLUSTER\nspec:\n"
        "  postgresql: <settings>\n    parameters: <settings>\n      {settings}\n"
        + _RESOURCES.format(at="  ")
        + '\n  ephemeralVolumesSizeLimit: <shm>\n    shm: "{shm}" <shm>',
        setting='{name}: "{value}"',
        how=_MANIFEST + "or: kubectl patch clusters.postgresql.cnpg.io CLUSTER --type merge --patch-file "
        "FILE. The operator restarts standbys first.",
    ),
    "pgo": Form(
        frame="apiVersion: postgres-operator.crunchydata.com/v1beta1\nkind: PostgresCluster\nmetadata:\n"
        "  name: CLUSTER\nspec:\n  patroni: <settings>\n    dynamicConfiguration: <settings>\n"
        "      postgresql: <settings>\n        parameters: <settings>\n          {settings}\n"
        "  instances: <memory|huge>\n    - name: INSTANCE <memory|huge>\n" + _RESOURCES.format(at="      "),
        setting='{name}: "{value}"',
        how=_MANIFEST + "a merge patch would replace the whole list of instances. PGO sets huge_pages to try "
        "where huge pages are requested, and to off where none are.",
        instead={"shm": "PGO mounts /dev/shm by itself, as large as the memory limit allows"},
    ),
    "zalando": Form(
        frame="apiVersion: acid.zalan.do/v1\nkind: postgresql\nmetadata:\n  name: CLUSTER\nspec:\n"
        "  postgresql: <settings>\n    parameters: <settings>\n      {settings}\n"
        + _RESOURCES.format(at="  ")
        + "\n  enableShmVolume: true <shm>",
        setting='{name}: "{value}"',
        how=_MANIFEST + "or: kubectl patch postgresqls.acid.zalan.do CLUSTER --type merge --patch-file FILE.",
    ),
    "stackgres": Form(
        frame="apiVersion: stackgres.io/v1 <settings>\nkind: SGPostgresConfig <settings>\n"
        "metadata: <settings>\n"
        '  name: CONFIG <settings>\nspec: <settings>\n  postgresVersion: "{major}" <settings>\n'
        "  postgresql.conf: <settings>\n    {settings}\n--- <memory|huge>\n"
        "apiVersion: stackgres.io/v1 <memory|huge>\nkind: SGInstanceProfile <memory|huge>\n"
        "metadata: <memory|huge>\n  name: PROFILE <memory|huge>\nspec: <memory|huge>\n"
        '  memory: "{memory}" <memory>\n  hugePages: <huge>\n    hugepages-{huge_word}: "{huge}" <huge>',
        setting='{name}: "{value}"',
        how=_MANIFEST + "then restart the SGCluster by an SGDbOps of op restart.",
        instead={"shm": "StackGres mounts /dev/shm by itself, as large as the memory limit allows"},
    ),
    "bitnami": Form(
        frame="primary: <settings|memory|huge>\n  extendedConfiguration: | <settings>\n    {settings}\n"
        + _RESOURCES.format(at="  ")
        + '\nshmVolume: <shm>\n  enabled: true <shm>\n  sizeLimit: "{shm}" <shm>',
        setting="{name} = '{value}'",
        how="Values of the chart: helm upgrade RELEASE CHART --reuse-values -f FILE. readReplicas takes the "
        "same.",
    ),
    "compose": Form(
        frame="services:\n  postgres:\n    command: <settings>\n      - postgres <settings>\n"
        "      {settings}\n"
        '    shm_size: "{shm_compose}" <shm>\n    deploy: <memory>\n      resources: <memory>\n'
        '        limits: <memory>\n          memory: "{memory_compose}" <memory>\n'
        '        reservations: <memory>\n          memory: "{memory_compose}" <memory>',
        setting='- -c\n- "{name}={value}"',
        how="Beside compose.yaml: docker compose -f compose.yaml -f FILE up -d. It replaces the service's "
        "command: keep its other arguments.",
        kernel=f"# {_ON_HOST}",
        instead={"huge": "{huge_pages} huge pages of {huge_size} are set aside on the host"},
    ),
    "rds": _parameter_group("", page_cache=True),
    "aurora": _parameter_group("cluster-", page_cache=False),
    "cloudsql": Form(
        frame="gcloud sql instances patch INSTANCE --database-flags={settings}",
        setting="{name}={value}",
        between=",",
        how="For a shell. --database-flags replaces all flags: add those that are set already. The instance "
        "is restarted where a flag takes it. It takes shared_buffers from 10 to 60% of the instance's "
        "memory, effective_cache_size from 10 to 70%.",
        number=True,
        apart=True,
        hosted=True,
        shares={"shared_buffers": (0.1, 0.6), "effective_cache_size": (0.1, 0.7)},
        instead=_HOSTED,
    ),
    "azure": Form(
        frame="{settings}",
        setting="az postgres flexible-server parameter set --resource-group GROUP --server-name SERVER "
        "--name {name} --value {value}",
        how="For a shell; then, for what takes a restart: az postgres flexible-server restart "
        "--resource-group GROUP --name SERVER",
        number=True,
        hosted=True,
        instead=_HOSTED,
    ),
    "terraform-aws": Form(
        frame='resource "{aws_resource}" "postgresql" {{\n  name   = "GROUP"\n  family = "{aws_family}"\n\n'
        "  {settings}\n}}",
        setting='parameter {{\n  name         = "{name}"\n  value        = "{value}"\n'
        '  apply_method = "{apply}"\n}}',
        how="What is pending-reboot takes effect when the instance is rebooted.",
        number=True,
        hosted=True,
        instead=_HOSTED,
    ),
    "ansible": Form(
        frame="- name: Settings that pgsweep advises\n  hosts: postgresql\n  tasks:\n    {settings}",
        setting="- name: Set {name}\n  community.postgresql.postgresql_alter_system:\n    param: {name}\n"
        '    value: "{value}"',
        how="A playbook: ansible-playbook FILE, with become for the kernel's settings, and login_user for "
        "the server's. It does not restart the server.",
        kernel="- name: Set {name}, before the restart\n  become: true\n  ansible.posix.sysctl:\n"
        '    name: {name}\n    value: "{value}"\n    sysctl_set: true',
        instead=_CONTAINED,
    ),
}
"""The forms, as `pgsweep advise --format` names them."""

_PATTERN: Final = re.compile(r"\d+")


def patch(result: AdviceResult, name: str, *, comments: bool = True) -> str:
    """Return the advice in a form, with the reasons as comments; empty where nothing is to be said.

    Args:
        result: the advice, cleaned for being shown (ui/results.py, `plain`).
        name: of the form.
        comments: whether the reasons are there, and what is left as it is.
    """
    form = FORMS[name]
    if form.own and result.set_elsewhere is not None:
        return _elsewhere(result, form)
    lines = [*comment(form.mark, sentence(result.summary)), *_notes(result, form)] if comments else []
    blocks, wanted = _blocks(result, form, comments=comments)
    if form.apart or not wanted:
        lines += [line for said, _ in blocks for line in said]
        blocks = [([], text) for _, text in blocks]
    body = _framed(form, blocks, _words(result, form)) if _is_changed(result, form) else []
    if body and comments and not form.own:
        lines += ["", *(comment(form.mark, form.how) if form.how else [])]
    if not wanted and form.own:
        body = []
    lines += body
    if form.reload and any(one.action == "set" and one.takes_effect == "reload" for one in result.settings):
        lines.append(form.reload)
    return "\n".join(lines) + "\n" if lines else ""


def _elsewhere(result: AdviceResult, form: Form) -> str:
    """Return the advice as comments, and where it is set: not in the form that was asked for."""
    mark = form.mark
    place = result.place
    owner = "" if place is None else place.provider or place.manager or ""
    # On one line, as a command in it is for pasting.
    where = " ".join((result.set_elsewhere or "").split())
    lines = [*comment(mark, f"{owner} keeps the settings of this server. Set it:"), f"{mark} {where}"]
    if result.form in FORMS and not FORMS[result.form].own:
        lines += comment(mark, f"As a patch: --format {result.form}")
    lines += ["", *comment(mark, sentence(result.summary))]
    for one in result.settings:
        lines += _said(one, form)
        if one.where == "server" and one.action == "set":
            lines.append(f"{mark} {one.name} = {one.value}")
    return "\n".join(lines) + "\n"


def _notes(result: AdviceResult, form: Form) -> list[str]:
    """Return what the form cannot hold, with what to do for it, where it matters."""
    found, words = result.resources, _words(result, form)
    place = result.place
    if found is None or (form.own and (place is None or not place.contained)):
        return []
    reasons = {"memory": found.memory_why, "huge": found.huge_pages_why, "shm": found.dev_shm_why}
    lines: list[str] = []
    for what, why in reasons.items():
        value = words.get(what)
        if what in form.instead:
            if value is not None:
                lines += comment(form.mark, f"{form.instead[what].format(**words)}: {why}")
        elif not form.hosted:
            lines += comment(form.mark, f"{_RESOURCE_NAMES[what]}: {value or 'not set'}: {why}")
    return lines


_RESOURCE_NAMES: Final = {"memory": "memory", "huge": "huge pages", "shm": "/dev/shm"}  # noqa: S108 (a name)


def _is_changed(result: AdviceResult, form: Form) -> bool:
    """Return whether anything is to be changed at all."""
    return any(one.action == "set" and one.where != "command" for one in _for(result, form))


def _for(result: AdviceResult, form: Form) -> list[AdvisedSetting]:
    """Return the settings that the form has a place for."""
    return [one for one in result.settings if not (form.hosted and one.where in ("kernel", "cgroup"))]


def _blocks(result: AdviceResult, form: Form, *, comments: bool) -> tuple[list[tuple[list[str], str]], bool]:
    """Return the reasons and the text of each setting, and whether any is set in the frame."""
    blocks: list[tuple[list[str], str]] = []
    wanted = False
    for setting in _for(result, form):
        one, limited = _within(setting, form, result.resources)
        said = (_said(setting, form) if comments else []) + limited
        text = ""
        if one.action == "set" and one.value is not None:
            if one.where == "server" and one.name == "effective_cache_size" and not form.page_cache:
                said += comment(form.mark, "left out: behind the pool there is no page cache of Linux")
            elif one.where == "server":
                text = _written(one, form)
            elif one.where == "kernel":
                text = form.kernel.format(name=one.name, value=one.value)
            elif one.where == "cgroup":
                text = f"# for the server's cgroup, before the restart: {one.name} = {one.value}"
            else:
                said += comment(form.mark, one.value) if comments else []
            if text.startswith("# "):
                said, text = said + comment(form.mark, text[2:]), ""
        wanted = wanted or bool(text)
        blocks.append((said, text))
    return blocks, wanted


def _within(one: AdvisedSetting, form: Form, resources: Resources | None) -> tuple[AdvisedSetting, list[str]]:
    """Return a setting as the provider takes it, and what is said where that is another value."""
    memory, shares = None if resources is None else resources.memory_bytes, form.shares.get(one.name)
    if memory is None or shares is None or one.action != "set" or one.value is None:
        return one, []
    wanted = parse_bytes(one.value)
    # In whole MB, so that it is within.
    least, most = -(-memory * shares[0] // _MB) * _MB, memory * shares[1] // _MB * _MB
    taken = round(min(max(wanted, least), most))
    if taken == wanted:
        return one, []
    shown = f"{shares[0]:.0%} to {shares[1]:.0%} of {format_bytes(memory)}"
    value = as_setting(taken)
    return msgspec.structs.replace(one, value=value), comment(
        form.mark, f"{value} instead of {one.value}: the provider takes {shown}"
    )


def _said(one: AdvisedSetting, form: Form) -> list[str]:
    texts = about(one, undo=form.own)
    texts[0] = f"{one.name}: {texts[0]}"
    lines = ["", *(line for text in texts for line in comment(form.mark, text))]
    if one.action != "set" or one.value is None:
        lines += comment(form.mark, ACTIONS[one.action] + (f": {one.today}" if one.today else ""))
    return lines


def _written(one: AdvisedSetting, form: Form) -> str:
    value = one.value or ""
    return form.setting.format(
        name=one.name,
        value=in_unit(value, SETTING_UNITS.get(one.name)) if form.number else value,
        apply="pending-reboot" if one.takes_effect == "restart" else "immediate",
    )


def _words(result: AdviceResult, form: Form) -> dict[str, str]:
    """Return what the placeholders of a frame stand for; one that is not known is missing."""
    aurora = not form.page_cache or (result.place is not None and result.place.provider == "Amazon Aurora")
    major = (_PATTERN.findall(result.server_version) or ["NN"])[0]
    words = {
        "major": major,
        "aws_resource": "aws_rds_cluster_parameter_group" if aurora else "aws_db_parameter_group",
        "aws_family": f"{'aurora-postgresql' if aurora else 'postgres'}{major}",
    }
    found = result.resources
    if found is None:
        return words
    amounts = form.hosted or form.own or "memory" in form.instead
    if found.memory_bytes is not None:
        words["memory"] = format_bytes(found.memory_bytes) if amounts else _quantity(found.memory_bytes)
        words |= {"memory_bytes": str(found.memory_bytes), "memory_compose": f"{found.memory_bytes // _MB}M"}
    if found.dev_shm_bytes is not None:
        words["shm"] = format_bytes(found.dev_shm_bytes) if amounts else _quantity(found.dev_shm_bytes)
        words["shm_compose"] = f"{found.dev_shm_bytes // _MB}m"
    return words | _huge_words(found)


def _huge_words(found: Resources) -> dict[str, str]:
    if found.huge_bytes is None or found.huge_page_size_bytes is None:
        return {}
    return {
        "huge": _quantity(found.huge_bytes),
        "huge_pages": str(found.huge_pages),
        "huge_size": format_bytes(found.huge_page_size_bytes),
        "huge_word": f"{huge_page_word(found.huge_page_size_bytes)}i",
    }


def _quantity(size_bytes: int) -> str:
    """Return a size as Kubernetes writes it, in whole Gi or Mi, rounded down to these."""
    gigabytes, rest = divmod(size_bytes, 1 << 30)
    return f"{gigabytes}Gi" if gigabytes and not rest else f"{size_bytes // _MB}Mi"


def _framed(form: Form, blocks: list[tuple[list[str], str]], words: Mapping[str, str]) -> list[str]:
    """Return the frame with all that is known; nothing where it would hold nothing."""
    known = {what for what in ("memory", "huge", "shm") if what in words and what not in form.instead}
    if any(text for _, text in blocks):
        known.add("settings")
    lines: list[str] = []
    for line in form.frame.split("\n"):
        guard = _GUARD.search(line)
        if guard is not None:
            if not known & set(guard[1].split("|")):
                continue
            line = line[: guard.start()]
        if line.strip() == "{settings}":
            lines += _indented(blocks, form, line[: line.index("{")])
        elif "settings" in known or "{settings}" not in line:
            joined = form.between.join(text for _, text in blocks if text)
            lines.append(line.format(**words, settings=joined))
    return lines if known else []


def _indented(blocks: list[tuple[list[str], str]], form: Form, at: str) -> list[str]:
    lines: list[str] = []
    last = max((index for index, (_, text) in enumerate(blocks) if text), default=-1)
    for index, (said, text) in enumerate(blocks):
        if text:
            end = form.between.rstrip("\n") if index < last else ""
            said = [*said, *(text + end).split("\n")]
        lines += [f"{at}{line}" if line else "" for line in said]
    return lines[1:] if lines and not lines[0] else lines
