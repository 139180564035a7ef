"""Advice in each form: read by what reads it where it is applied, and by a server that starts with it.

The schemas are in tests/forms: derived.json, which tools/form_schemas.py derives from those of the operators,
and schemas.json for the forms that have none. Patroni itself reads its form in tests/places/test_patroni.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import psycopg
import pytest

from pgsweep.advice.owner import form_at
from pgsweep.advice.resources import resources_of
from pgsweep.cli import advise as cli
from pgsweep.pg.catalog.manager import MANAGERS, PATRONI, PGO, STACKGRES, Manager
from pgsweep.pg.catalog.provider import PROVIDERS
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.advice import AdviceResult
from pgsweep.records.place import Kind, Place, PlaceMemory
from pgsweep.ui.forms import FORMS, patch
from tests.fix_advice import GB, MB, advised, growing, pages, situation
from tests.fix_cli import run
from tests.fix_forms import PAGES, SHOWN, WANTED, wanted

yaml = pytest.importorskip("yaml")
SCHEMAS, DERIVED = [
    json.loads((Path(__file__).parents[1] / "forms" / name).read_text())
    for name in ("schemas.json", "derived.json")
]


def documents(form: str, result: AdviceResult | None = None) -> list[Any]:
    """Return what a YAML reader finds, each document valid by its schema once names are filled in."""
    text = patch(result or wanted(), form)
    for name in ("CLUSTER", "INSTANCE", "CONFIG", "PROFILE"):
        text = text.replace(f"name: {name}", f"name: {name.lower()}")
    found = list(yaml.safe_load_all(text))
    own = {**SCHEMAS.get(form, {}), "definitions": SCHEMAS["definitions"]}
    for document, schema in zip(found, DERIVED.get(form, [own]), strict=result is None):
        jsonschema.Draft7Validator(schema).validate(document)
    return found


def test_every_form_can_be_asked_for_and_every_owner_has_one() -> None:
    assert set(cli._FORMATS) == {"text", "json", "csv", "patch", *FORMS}
    for manager in MANAGERS:
        assert form_at(Place(kind="pod", manager=manager.name)) == manager.form
        assert manager.form in FORMS
    for name in ("rds", "aurora", "cloudsql", "azure"):
        assert form_at(Place(kind="elsewhere", provider=PROVIDERS[name].name)) == name
    assert {form_at(Place(kind=kind)) for kind in get_args(Kind)} == {"alter-system", "compose"}
    assert form_at(Place(kind="container")) == "compose"
    assert form_at(None) == "alter-system"


@pytest.mark.parametrize("form", FORMS)
def test_each_form_holds_every_setting_once_under_its_reason(form: str) -> None:
    text = patch(wanted(), form)
    mark = FORMS[form].mark
    lines = text.splitlines()
    for name, value in WANTED.items():
        shown = SHOWN[name] if FORMS[form].number else value
        if name in FORMS[form].shares:
            continue
        if name in ("shared_buffers", "effective_cache_size") and form == "aurora":
            assert text.count("left out: the advice counts on a page cache of Linux") == 3
            assert shown not in text
            continue
        at = [i for i, line in enumerate(lines) if name in line and shown in line and mark not in line]
        if form not in ("terraform-aws", "ansible"):
            assert len(at) == 1, (form, name, text)
        assert any(line.strip().startswith(f"{mark} {name}: ") for line in lines), "its reason"
    # The memory: in the frame, or said where the frame cannot hold it.
    said = ("11.9 GB" in text, f"{16 * 1024 - PAGES * 2}M" in text)
    assert any(said) == (form not in ("alter-system", "postgresql.conf")), said
    assert "ALTER SYSTEM" not in text or form in ("alter-system", "postgresql.conf")


@pytest.mark.parametrize("form", FORMS)
def test_nothing_to_change_is_comments_only(form: str) -> None:
    result = advised(situation({GB: 0.2}, {GB: 9_000.0}, settings={}))
    result = msgspec.structs.replace(
        result, resources=resources_of(situation({GB: 0.2}), result.settings, None)
    )
    text = patch(result, form)
    assert text
    assert all(not line or line.startswith(FORMS[form].mark) for line in text.splitlines())


@pytest.mark.parametrize("form", ["cnpg", "pgo", "zalando", "stackgres", "bitnami"])
def test_operators_get_the_exact_huge_pages_as_request_and_limit(form: str) -> None:
    found = documents(form)
    text = json.dumps(found)
    assert f'"hugepages-2Mi": "{PAGES * 2}Mi"' in text
    # 16 GB are shared; the huge pages count apart.
    assert f'"memory": "{16 * 1024 - PAGES * 2}Mi"' in text
    if form != "stackgres":
        resources = found[0].get("spec", found[0].get("primary", {}))
        resources = resources["instances"][0]["resources"] if form == "pgo" else resources["resources"]
        assert resources["requests"] == resources["limits"]
    counted = Place(kind="pod", memory=PlaceMemory(counts_huge_pages=True))
    assert '"memory": "16Gi"' in json.dumps(documents(form, wanted(counted)))


@pytest.mark.parametrize(("saved", "limit", "requested"), [(GB, 0, True), (MB, 0, False), (GB, None, False)])
def test_a_pod_that_may_have_no_huge_pages_requests_them_where_they_pay(
    saved: int, limit: int | None, requested: bool
) -> None:
    """The kubelet allows a pod as many as it requests: none where it requests none."""
    result = wanted()
    settings = [one for one in result.settings if one.where != "kernel"]
    known = situation({GB: 0.2}, {GB: 9_000.0}, huge_pages=pages(saved=saved, limit=limit))
    resources = resources_of(known, settings, Place(kind="pod"))
    result = msgspec.structs.replace(result, settings=settings, resources=resources)
    found = documents("cnpg", result)[0]["spec"]["resources"]
    assert found["requests"] == found["limits"]
    assert found["limits"].get("hugepages-2Mi") == ("4400Mi" if requested else None)


@pytest.mark.parametrize(
    ("manager", "kind", "requested"),
    [(PGO, "pod", True), (STACKGRES, "pod", True), (PATRONI, "pod", False), (PGO, "container", False)],
)
def test_an_operators_off_is_changed_together_with_the_request(
    manager: Manager, kind: Kind, requested: bool
) -> None:
    """PGO and StackGres set huge_pages to off where a pod requests none; try alone would end it."""
    place = Place(kind=kind, manager=manager.name)
    found = msgspec.structs.replace(pages(saved=GB, limit=0), huge_pages="off", place=place)
    known = replace(growing(), huge_pages=found, settings={"huge_pages": "off"})
    result = advised(known)
    setting = next(one for one in result.settings if one.name == "huge_pages")
    assert (setting.action, setting.value) == (("set", "try") if requested else ("leave", None))
    assert resources_of(known, result.settings, place).huge_pages == (2200 if requested else None)


def test_parameters_of_operators_and_of_patroni_are_texts() -> None:
    assert documents("cnpg")[0]["spec"]["postgresql"]["parameters"] == WANTED
    assert documents("cnpg")[0]["spec"]["ephemeralVolumesSizeLimit"] == {"shm": "64Mi"}
    assert documents("zalando")[0]["spec"]["postgresql"]["parameters"] == WANTED
    # PGO hands it to Patroni as it is.
    dynamic = documents("pgo")[0]["spec"]["patroni"]["dynamicConfiguration"]
    assert dynamic == {"postgresql": {"parameters": WANTED}} == yaml.safe_load(patch(wanted(), "patroni"))
    config, profile = documents("stackgres")
    assert config["spec"]["postgresql.conf"] == WANTED
    assert profile["kind"] == "SGInstanceProfile"


def test_schemas_refuse_fields_that_operators_do_not_know() -> None:
    """They are those of the operators, so the names that a patch leaves to be filled in are refused too."""
    for form, schemas in DERIVED.items():
        if form == "$comment":
            continue
        [document, *_] = documents(form)
        document["spec" if "spec" in document else "services"]["sharedBuffers"] = "1GB"
        assert not jsonschema.Draft7Validator(schemas[0]).is_valid(document), form
    unnamed = yaml.safe_load(patch(wanted(), "pgo"))
    assert not jsonschema.Draft7Validator(DERIVED["pgo"][0]).is_valid(unnamed)


def test_cloudnativepg_has_the_memory_for_its_pool() -> None:
    """Its webhook adds what is requested of memory and of huge pages (cluster_webhook.go)."""
    spec = documents("cnpg")[0]["spec"]
    requested = sum(int(one.removesuffix("Mi")) for one in spec["resources"]["requests"].values())
    pool = spec["postgresql"]["parameters"]["shared_buffers"]
    assert pool.endswith("MB") and int(pool.removesuffix("MB")) <= requested == 16 * 1024


def test_a_patch_holds_no_resources_that_are_not_known() -> None:
    result = wanted()
    nothing = msgspec.structs.replace(result, resources=None)
    assert documents("cnpg", nothing)[0]["spec"] == {"postgresql": {"parameters": WANTED}}
    assert [one["kind"] for one in documents("stackgres", nothing)] == ["SGPostgresConfig"]
    assert "hugepages-2Mi" not in patch(nothing, "bitnami")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.create(None, {"max_connections": "21"}) as found:
        yield found


def _values(cluster: Cluster) -> dict[str, str]:
    with psycopg.connect(cluster.conninfo()) as session:
        rows = session.execute(
            "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY(%s)", [list(WANTED)]
        )
        return dict(rows.fetchall())


def test_a_server_starts_with_the_statements_and_with_the_lines(cluster: Cluster) -> None:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
        for line in patch(wanted(), "alter-system").splitlines():
            if line and not line.startswith("--"):
                session.execute(line.encode())
    cluster.restart()
    assert _values(cluster) == SHOWN
    with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
        session.execute("ALTER SYSTEM RESET ALL")
    cluster.restart()
    assert _values(cluster) != SHOWN
    conf = cluster.data_directory / "postgresql.conf"
    before = conf.read_text()
    # What the chart appends is lines of the same file.
    for lines in (
        patch(wanted(), "postgresql.conf"),
        documents("bitnami")[0]["primary"]["extendedConfiguration"],
    ):
        conf.write_text(before + lines)
        cluster.restart()
        assert _values(cluster) == SHOWN
        conf.write_text(before)


def test_a_server_takes_the_command_line_of_compose(cluster: Cluster) -> None:
    service = documents("compose")[0]["services"]["postgres"]
    assert service["deploy"]["resources"]["limits"] == {"memory": f"{16 * 1024 - PAGES * 2}M"}
    for name, value in SHOWN.items():
        # Options of -C come first; the server says the value that it would start with.
        program, *given = service["command"]
        argv = [program, "-C", name, "-D", str(cluster.data_directory), *given]
        code, said = cluster.run_program(argv, 30)
        assert (code, said.strip().splitlines()[-1]) == (0, value)


@pytest.mark.parametrize("form", ["cnpg", "zalando"])
def test_kubectl_merges_the_patch(form: str, tmp_path: Path) -> None:
    """The command that the patch names, on a manifest in a file: it keeps what the patch does not set."""
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("the program kubectl is not installed")
    [document] = documents(form)
    whole = {**document, "spec": {"instances": 3, "postgresql": {"parameters": {"work_mem": "8MB"}}}}
    for name, text in (("manifest.yaml", yaml.safe_dump(whole)), ("patch.yaml", patch(wanted(), form))):
        (tmp_path / name).write_text(text.replace("name: CLUSTER", "name: cluster"))
    argv = [kubectl, "patch", "--local", "-f", "manifest.yaml", "--type", "merge", "-o", "yaml"]
    argv += ["--patch-file", "patch.yaml"]
    env = {"PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    merged = yaml.safe_load(done.stdout)["spec"]
    assert merged.pop("instances") == 3
    assert merged["postgresql"]["parameters"] == {**WANTED, "work_mem": "8MB"}
    merged["postgresql"]["parameters"] = WANTED
    assert merged == document["spec"]


def test_docker_reads_the_compose_file(tmp_path: Path) -> None:
    """Its own reader, without a daemon: it says what it has understood, in bytes."""
    if (docker := shutil.which("docker")) is None:
        pytest.skip("the program docker is not installed")
    files = {
        "compose.yaml": "services: {postgres: {image: postgres, shm_size: 1gb}}",
        "patch.yaml": patch(wanted(), "compose"),
        "wrong.yaml": patch(wanted(), "compose").replace("shm_size", "shm"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name, good in (("patch.yaml", True), ("wrong.yaml", False)):
        argv = [docker, "stack", "config", "-c", "compose.yaml", "-c", name]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
        if "unknown" in done.stderr:
            pytest.skip(f"this docker has no such command: {done.stderr}")
        assert (done.returncode == 0) is good, done.stderr
        if good:
            service = yaml.safe_load(done.stdout)["services"]["postgres"]
            assert service["deploy"]["resources"]["limits"]["memory"] == str((16 * 1024 - PAGES * 2) * MB)
            assert service["shm_size"] == "64m" and len(service["command"]) == 1 + 2 * len(WANTED)


def _words(text: str) -> list[list[str]]:
    """Return the commands of a script as a shell reads it.

    The providers' programs are replaced by one that says what it was given; no other can be called.
    """
    programs = ("aws", "gcloud", "az")
    tell = "".join(f"{name}() {{ printf '%s\\0' {name} \"$@\"; echo; }}\n" for name in programs)
    argv = ["/bin/bash", "-euc", tell + text]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PATH": ""})
    assert not done.stderr
    return [line.rstrip("\0").split("\0") for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("form", "of", "operation"),
    [("rds", "", "ModifyDBParameterGroup"), ("aurora", "cluster-", "ModifyDBClusterParameterGroup")],
)
def test_parameter_groups_take_numbers_in_the_units_of_the_server(form: str, of: str, operation: str) -> None:
    """Amazon's own library checks the parameters by its model of the service, without a connection."""
    botocore = pytest.importorskip("botocore.session")
    validate = pytest.importorskip("botocore.validate")
    service = botocore.Session().get_service_model("rds")
    given = service.operation_model(operation).input_shape.members["Parameters"]
    [command] = _words(patch(wanted(), form))
    assert command[:3] == ["aws", "rds", f"modify-db-{of}parameter-group"]
    assert command[3] == f"--db-{of}parameter-group-name"
    words = command[command.index("--parameters") + 1 :]
    parameters = [dict(part.split("=", 1) for part in word.split(",")) for word in words]
    assert not validate.ParamValidator().validate(parameters, given).has_errors()
    methods = given.member.members["ApplyMethod"].enum
    assert {one["ApplyMethod"] for one in parameters} <= set(methods)
    found = {one["ParameterName"]: (one["ParameterValue"], one["ApplyMethod"]) for one in parameters}
    expected = {name: (value, "pending-reboot") for name, value in SHOWN.items()}
    expected["effective_cache_size"] = (SHOWN["effective_cache_size"], "immediate")
    if form == "aurora":
        # What Linux's page cache would hold says nothing there.
        del expected["effective_cache_size"], expected["shared_buffers"]
    assert found == expected


def test_cloud_sql_and_azure_take_numbers_too() -> None:
    def flags(memory_bytes: int | None) -> dict[str, str]:
        result = wanted()
        assert result.resources is not None
        resources = msgspec.structs.replace(result.resources, memory_bytes=memory_bytes)
        [command] = _words(patch(msgspec.structs.replace(result, resources=resources), "cloudsql"))
        pairs = command[-1].removeprefix("--database-flags=").split(",")
        return dict(pair.split("=") for pair in pairs)

    assert flags(None) == flags(150 * MB) == SHOWN
    # Cloud SQL refuses all flags where it does not take one: less or more of the instance's memory.
    for memory, pool, cache in ((GB, 103, 103), (100 * MB, 48, 70), (70 * MB, 42, 49)):
        blocks = {"shared_buffers": str(pool * 128), "effective_cache_size": str(cache * 128)}
        assert flags(memory) == {**SHOWN, **blocks}
    commands = _words(patch(wanted(), "azure"))
    assert {one[one.index("--name") + 1]: one[one.index("--value") + 1] for one in commands} == SHOWN


@pytest.mark.slow
def test_gcloud_takes_the_command(tmp_path: Path) -> None:
    """Its own parser, without a connection; what it keeps goes to a folder of ours."""
    if (gcloud := shutil.which("gcloud")) is None:
        pytest.skip("the program gcloud is not installed")
    [command] = _words(patch(wanted(), "cloudsql"))
    for words, good in ((command, True), ([*command[:-1], "--flags=a=1"], False)):
        argv = [gcloud, "meta", "lint-gcloud-commands", f"--command-string={' '.join(words)}"]
        env = {
            **os.environ,
            "CLOUDSDK_CONFIG": str(tmp_path),
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        }
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120, env=env)
        assert json.loads(done.stdout)[0]["success"] is good, done.stdout


@pytest.mark.parametrize("provider", [None, "Amazon Aurora"])
def test_the_provider_of_terraform_knows_every_argument(provider: str | None) -> None:
    """Its arguments stand in a schema: the provider itself cannot be had where the tests run."""
    hcl2 = pytest.importorskip("hcl2")
    place = None if provider is None else Place(kind="elsewhere", provider=provider)
    options = hcl2.SerializationOptions(with_comments=False, explicit_blocks=False, strip_string_quotes=True)
    read = hcl2.loads(patch(wanted(place), "terraform-aws"), serialization_options=options)
    schema = jsonschema.Draft7Validator(SCHEMAS["terraform-aws"])
    schema.validate(read)
    [[kind, group]] = read["resource"][0].items()
    assert kind == ("aws_db_parameter_group" if provider is None else "aws_rds_cluster_parameter_group")
    found = {one["name"]: one["value"] for one in group["postgresql"]["parameter"]}
    assert found == {name: SHOWN[name] for name in found}
    assert len(found) == len(WANTED) - 2 * (provider is not None)
    group["postgresql"]["parameter"][0]["unit"] = "8kB"
    assert not schema.is_valid(read)


@pytest.mark.parametrize("provider", [None, "Amazon Aurora"])
def test_terraform_reads_the_parameter_group(tmp_path: Path, provider: str | None) -> None:
    """It parses the file, and finds it formatted as it would format it."""
    if (terraform := shutil.which("terraform")) is None:
        pytest.skip("the program terraform is not installed")
    place = None if provider is None else Place(kind="elsewhere", provider=provider)
    text = patch(wanted(place), "terraform-aws")
    file = tmp_path / "postgresql.tf"
    for content, code in ((text, 0), (text.replace("}", "", 1), 2)):
        file.write_text(content)
        done = subprocess.run(
            [terraform, "fmt", "-check", str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
    kind = "aws_db_parameter_group" if provider is None else "aws_rds_cluster_parameter_group"
    family = "postgres18" if provider is None else "aurora-postgresql18"
    assert f'resource "{kind}" "postgresql"' in text
    assert f'family = "{family}"' in text
    # Behind Aurora's pool there is no page cache.
    assert text.count("  parameter {") == len(WANTED) - 2 * (provider is not None)


def test_ansible_reads_the_playbook() -> None:
    [play] = documents("ansible")[0]
    module = "community.postgresql.postgresql_alter_system"
    found = {task[module]["param"]: task[module]["value"] for task in play["tasks"] if module in task}
    assert found == WANTED
    [kernel] = [task["ansible.posix.sysctl"] for task in play["tasks"] if module not in task]
    assert (kernel["name"], kernel["value"]) == ("vm.nr_hugepages", str(PAGES + 7))


def test_providers_are_told_nothing_of_their_hosts() -> None:
    for form in ("rds", "aurora", "cloudsql", "azure", "terraform-aws"):
        text = patch(wanted(), form)
        assert "sysctl" not in text
        assert "hugepages" not in text


def test_the_form_of_the_place_is_chosen(tmp_path: Path) -> None:
    """Evidence of a server that CloudNativePG keeps: `--format patch` is its manifest."""
    folder = tmp_path / "e.evidence"
    shutil.copytree(Path(__file__).parents[1] / "answers" / "evidence" / "sql-14", folder)
    meta = json.loads((folder / "meta.json").read_text())
    place = Place(kind="pod", manager="CloudNativePG", manager_because="its settings")
    meta["host"]["place"] = msgspec.json.encode(place).decode()
    (folder / "meta.json").write_text(json.dumps(meta))
    done = run("advise", str(folder), "--ram", "64GB", "--format", "patch")
    assert done.returncode == 0, done.stderr
    [document] = yaml.safe_load_all(done.stdout)
    assert document["kind"] == "Cluster"
    assert "effective_cache_size" in document["spec"]["postgresql"]["parameters"]
    said = run("advise", str(folder), "--ram", "64GB", "--format", "alter-system").stdout
    assert "As a patch: --format cnpg" in said
    assert all(not line or line.startswith("--") for line in said.splitlines())
