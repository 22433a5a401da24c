"""Environments: where tables lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tidelake.config import Limits, conf_file, load_environment
from tidelake.config.locations import conf_dir, find_file, pipeline_names
from tidelake.delta.tables import lake_of
from tidelake.errors import ConfigError, NotBuiltError, UsageError
from tidelake.spark.java import read_lock


@pytest.fixture(autouse=True)
def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a conf folder in the working directory, and no variables."""
    (tmp_path / "conf" / "environments").mkdir(parents=True)
    (tmp_path / "conf" / "pipelines").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDELAKE_ENV", raising=False)
    for variable in ("TIDELAKE_ROOT", "TIDELAKE_CATALOG", "TIDELAKE_VOLUME", "SPARK_REMOTE"):
        monkeypatch.delenv(variable, raising=False)
    write("local", "root: lakehouse\n")
    write("prod", "catalog: tidelake\n")
    return tmp_path


def write(name: str, text: str) -> None:
    Path("conf/environments", f"{name}.yml").write_text(text)


def test_local_is_the_default_and_its_root_becomes_absolute(own_conf: Path) -> None:
    environment = load_environment()
    assert (environment.name, environment.root) == ("local", own_conf / "lakehouse")
    assert environment.limits == Limits(silver_bytes="256m", gold_bytes="256m")


def test_the_variable_names_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELAKE_ENV", "prod")
    assert load_environment().catalog == "tidelake"
    assert load_environment("local").catalog is None


def test_the_argument_beats_the_variable_and_that_the_file(
    own_conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELAKE_ROOT", "/from/variable")
    assert load_environment().root == Path("/from/variable")
    assert load_environment(root="here").root == own_conf / "here"


def test_a_root_wins_over_a_catalog() -> None:
    environment = load_environment("prod", root="/lake")
    assert (environment.root, environment.catalog) == (Path("/lake"), None)


def test_a_catalog_has_a_volume_of_its_own_unless_another_is_named() -> None:
    assert load_environment("prod").files == Path("/Volumes/tidelake/ops/files")
    write("prod", "catalog: tidelake\nvolume: /Volumes/other/a/b\n")
    assert load_environment("prod").files == Path("/Volumes/other/a/b")
    rooted = load_environment("prod", root="/lake")
    assert (rooted.files, rooted.volume) == (Path("/lake"), None)


@pytest.mark.parametrize(
    ("text", "root", "folder"),
    [
        ("root: /lake\n", None, "/lake/landing"),
        ("root: s3://bucket/lake\n", None, "s3://bucket/lake/landing"),
        ("root: /lake\nlanding: /in\n", None, "/in"),
        ("root: /lake\nlanding: s3://bucket/in\n", None, "s3://bucket/in"),
        ("catalog: shop\n", None, "/Volumes/shop/bronze/landing"),
        ("catalog: shop\nvolume: /Volumes/a/b/c\n", None, "/Volumes/shop/bronze/landing"),
        ("catalog: shop\nlanding: /Volumes/a/b/in\n", None, "/Volumes/a/b/in"),
        # All of it is in the folder that is named.
        ("catalog: shop\nlanding: /Volumes/a/b/in\n", "/lake", "/lake/landing"),
    ],
)
def test_input_has_a_folder_that_is_not_on_the_volume_of_the_checkpoints(
    text: str, root: str | None, folder: str
) -> None:
    write("prod", text)
    assert load_environment("prod", root=root).landing_folder == folder


def test_variables_name_the_catalog_of_an_environment_that_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDELAKE_CATALOG", "mine")
    found = load_environment("prod")
    assert (found.catalog, found.files) == ("mine", Path("/Volumes/mine/ops/files"))
    assert load_environment("local").catalog is None
    monkeypatch.setenv("TIDELAKE_VOLUME", "/Volumes/mine/a/b")
    assert load_environment("prod").files == Path("/Volumes/mine/a/b")


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("spark.sql.ansi.enabled: false", "true"),
        ("spark.sql.session.timeZone: Asia/Tokyo", "UTC"),
        ("spark.sql.caseSensitive: true", "false"),
        ("spark.sql.parser.escapedStringLiterals: true", "false"),
        ("spark.sql.mapKeyDedupPolicy: LAST_WIN", "EXCEPTION"),
        ("spark.sql.legacy.timeParserPolicy: LEGACY", "CORRECTED"),
    ],
)
def test_a_setting_that_results_depend_on_has_one_value(setting: str, wanted: str) -> None:
    key = setting.partition(":")[0]
    write("local", f"root: a\nspark:\n  a.b: 8\n  {setting}\n")
    with pytest.raises(ConfigError) as caught:
        load_environment()
    (found,) = caught.value.violations
    assert (found.path, found.line) == (f"spark.{key}", 4)
    assert found.message == f"must be {wanted}: results depend on it; leave it out"
    write("local", f"root: a\nspark: {{{key}: {wanted}}}\n")
    assert load_environment().spark == {key: wanted}


def test_a_legacy_setting_is_refused_since_no_table_records_it() -> None:
    write("local", "root: a\nspark: {a.b: 8, spark.sql.legacy.sizeOfNull: true}\n")
    with pytest.raises(ConfigError) as caught:
        load_environment()
    (found,) = caught.value.violations
    assert found.path == "spark.spark.sql.legacy.sizeOfNull"
    assert "changes results, which no table records; leave it out" in found.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "hunter2"),
        ("spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net", "hunter2"),
        ("spark.authenticate.secret", "hunter2"),
        ("spark.ssl.keyStorePassword", "hunter2"),
        ("spark.hadoop.fs.azure.sas.data.shop.dfs.core.windows.net", "hunter2"),
        ("spark.hadoop.fs.azure.account.oauth2.client.secret.shop.dfs.core.windows.net", "hunter2"),
        ("spark.hadoop.hive.server2.authentication.ldap.bindpw", "hunter2"),
        ("spark.any.setting", "env:TOKEN"),
        ("spark.any.setting", "secret:shop/token"),
    ],
)
def test_a_setting_of_spark_is_no_secret_since_every_user_sees_it(key: str, value: str) -> None:
    write("local", f"root: a\nspark: {{{key}: {value}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_environment()
    (found,) = caught.value.violations
    assert found.path == f"spark.{key}"
    assert "must not hold a secret, nor a reference to one" in found.message
    assert "docs/object-store.md" in found.message
    assert "hunter2" not in str(caught.value)


def test_a_setting_that_says_where_a_secret_is_holds_none() -> None:
    settings = {
        "spark.hadoop.fs.s3a.aws.credentials.provider": "com.example.Provider",
        "spark.hadoop.hadoop.security.credential.provider.path": "jceks://file/etc/shop.jceks",
        "spark.authenticate.secretBitLength": "256",
        "spark.security.credentials.renewalRatio": "0.5",
        "spark.kerberos.renewal.credentials": "ccache",
        "spark.hadoop.fs.s3a.delegation.token.binding": "com.example.Binding",
        "spark.hadoop.fs.azure.account.keyprovider.shop.dfs.core.windows.net": "com.example.Keys",
        "spark.kubernetes.driver.secrets.shop": "/etc/secrets",
        "spark.kubernetes.driver.secretKeyRef.TOKEN": "shop:token",
    }
    write("local", json.dumps({"root": "a", "spark": settings}))
    assert load_environment().spark == settings


def test_settings_of_spark_become_text() -> None:
    write("local", "root: a\nspark: {a.b: 8, c: true, d: x}\n")
    assert load_environment().spark == {"a.b": "8", "c": "true", "d": "x"}


def test_an_unknown_environment_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no environment 'prd'; did you mean prod\?.*local, prod"):
        load_environment("prd")


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("master: local\n", "root", "root or catalog is required"),
        ("root: a\ncatalog: b\n", "catalog", "combined with root"),
        ("root: ''\n", "root", "empty"),
        ("root: a\nvolume: b\n", "volume", "allowed with catalog only"),
        ("root: a\nconsistent_views: true\n", "consistent_views", "allowed with catalog only"),
        ("catalog: a\nconsistent_views: 1\n", "consistent_views", "true or false"),
        ("catalog: a\nlimits: {gold_bytes: 1g}\n", "limits", "under source: a batch of silver"),
        ("catalog: a\nlimits: {gold_bytes: 1g}\n", "limits", "input lands in portions, with a run"),
        ("catalog: a\nlocks: none\n", "locks", "has no effect with catalog; leave it out"),
        ("catalog: a\nmaster: local\n", "master", "allowed with root only"),
        ("catalog: a\nvolume: ''\n", "volume", "empty"),
        ("catalog: a\nvolume: 5\n", "volume", "path of a folder"),
        ("root: a\nlanding: ''\n", "landing", "empty"),
        ("root: 5\n", "root", "path of a folder"),
        ("catalog: a.b\n", "catalog", "catalog's name"),
        ("name: other\nroot: a\n", "name", "leave it out"),
        ("root: a\nlimits: {silver_bytes: lots}\n", "limits.silver_bytes", "256m"),
        ("root: a\nlimits: {silver_byte: 1m}\n", "limits.silver_byte", "did you mean silver_bytes"),
        ("root: a\nsprak: {}\n", "sprak", "did you mean spark"),
        ("root: a\nspark: {a: [1]}\n", "spark.a", "text"),
    ],
)
def test_a_broken_environment_is_refused_with_its_place(text: str, path: str, message: str) -> None:
    write("local", text)
    with pytest.raises(ConfigError) as caught:
        load_environment()
    (violation,) = caught.value.violations
    assert violation.path == path
    assert message in violation.message


def test_a_secret_is_a_reference_and_its_value_is_never_shown() -> None:
    write("local", "root: a\nsecrets: {registry: env:TOKEN, broker: hunter2}\n")
    with pytest.raises(ConfigError) as caught:
        load_environment()
    assert [violation.path for violation in caught.value.violations] == ["secrets.broker"]
    assert "hunter2" not in str(caught.value)


def test_secrets_of_an_environment_are_not_built_and_say_so() -> None:
    write("local", "root: a\nsecrets: {registry: env:TOKEN}\n")
    with pytest.raises(NotBuiltError, match=r"local.yml: secrets is not built yet. Write the"):
        load_environment()


def test_a_trigger_of_an_environment_is_one_and_of_a_hop() -> None:
    write("local", "root: a\ntriggers: {silver: 10 seconds, all: soon, later: continuous}\n")
    with pytest.raises(ConfigError) as caught:
        load_environment()
    found = {one.path: one.message for one in caught.value.violations}
    assert set(found) == {"triggers.all", "triggers.later"}
    assert "available-now, continuous or an interval" in found["triggers.all"]


def test_the_working_directorys_conf_comes_first(
    own_conf: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("conf/pipelines/mine.yml").write_text("name: mine\n")
    assert conf_dir() == own_conf / "conf"
    assert pipeline_names() == ["mine"]
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert {"clickstream", "flights"} <= set(pipeline_names())


@pytest.mark.parametrize("name", ["local", "dev", "prod"])
def test_the_environments_of_the_repository_load(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    environment = load_environment(name)
    assert (environment.root is None) == (name != "local")


def test_a_session_has_a_master_or_a_server() -> None:
    write("both", "root: lake\nmaster: local[2]\nremote: sc://host:15002\n")
    with pytest.raises(ConfigError, match=r"remote .*: cannot be combined with master"):
        load_environment("both")


def test_a_servers_address_is_in_the_file_and_its_token_is_not() -> None:
    write("near", "root: lake\nremote: sc://host:15002\n")
    assert load_environment("near").remote == "sc://host:15002"
    write("near", "root: lake\nremote: sc://host:443/;token=s3cret\n")
    with pytest.raises(ConfigError, match="tokens go into SPARK_REMOTE") as caught:
        load_environment("near")
    assert "s3cret" not in str(caught.value)


def test_the_variable_of_spark_connect_wins_and_its_token_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write("local", "root: lakehouse\nmaster: local[2]\n")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:443/;token=s3cret")
    environment = load_environment()
    assert (environment.master, environment.remote) == (None, "sc://host:443")
    # What a runtime sets for its own session is nothing to connect to.
    monkeypatch.setenv("SPARK_REMOTE", "unix:///run/spark.sock")
    assert load_environment().master == "local[2]"


def test_an_own_conf_folder_need_not_repeat_environments_and_locks(own_conf: Path) -> None:
    shutil.rmtree("conf/environments")
    environment = load_environment()
    assert environment.root == own_conf / "lakehouse"
    assert "spark.driver.memory" in environment.spark
    assert len(read_lock()) > 5
    assert conf_file("kafka-broker.lock").is_file()


def test_an_own_environment_and_lock_come_first(own_conf: Path) -> None:
    write("local", "root: mine\n")
    Path("conf/jars.lock").write_text("")
    assert load_environment().root == own_conf / "mine"
    assert read_lock() == ()


def test_a_pipeline_of_tidelakes_own_is_none_of_an_own_conf_folder(own_conf: Path) -> None:
    with pytest.raises(UsageError, match="there is no pipeline 'clickstream'"):
        find_file("clickstream", "pipeline")


def test_limits_of_a_file_with_a_catalog_hold_under_a_root_that_is_given(tmp_path: Path) -> None:
    write("prod", "catalog: a\nlimits: {silver_bytes: 1g}\n")
    assert load_environment("prod", root=str(tmp_path)).limits.silver_bytes == "1g"


def test_a_root_that_duckdb_would_misread_is_refused_where_tables_are_used(tmp_path: Path) -> None:
    environment = load_environment("local", root=str(tmp_path / "feature%2Fx"))
    with pytest.raises(UsageError, match=r"/feature%2Fx has a '%' in its path"):
        lake_of(environment)
