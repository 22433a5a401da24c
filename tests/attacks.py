"""Statements and settings with which a client would write, load code or read beside the tables.

One list for every way to ask: JDBC (Spark's dialect) and ``tidelake sql`` (DuckDB's). The page
takes paths and not statements; it is asked with the same texts.

Placeholders: ``{root}`` is the lake, ``{out}`` a path that must never exist, ``{secret}`` a CSV
file beside the lake that holds :data:`SECRET`, ``{folder}`` the folder of both and ``{outside}`` a
Delta table there. In an entry of several statements the last one would do the harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
from deltalake import write_deltalake

from tidelake.delta.tables import Lake

SECRET = "hunter2"

_REFLECTION = "org.apache.spark.sql.catalyst.expressions.CallMethodViaReflection"
_TEXT_FORMAT = "org.apache.spark.sql.execution.datasources.text.TextFileFormat"
_JDBC_CATALOG = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
_DERBY_DRIVER = "org.apache.derby.jdbc.EmbeddedDriver"
# With a change feed Delta keeps all options of a relation while Spark analyses the statement.
_OPTIONS = "'readChangeFeed' = 'true', 'startingVersion' = '0'"
_CLASS = "'fs.file.impl' = 'x.Y', 'fs.file.impl.disable.cache' = 'true'"
_WITH_A_CLASS = f"gold.totals WITH ({_OPTIONS}, {_CLASS})"
_DERBY_TABLE = f"(url 'jdbc:derby:{{out}};create=true', dbtable 't', driver '{_DERBY_DRIVER}')"
# What both dialects know.
_COMMON = [
    "INSERT INTO gold.totals SELECT * FROM gold.totals",
    "WITH t AS (SELECT * FROM gold.totals) INSERT INTO gold.totals SELECT * FROM t",
    "UPDATE gold.totals SET user_id = 'x'",
    "DELETE FROM gold.totals",
    "MERGE INTO gold.totals t USING gold.totals s ON false WHEN NOT MATCHED THEN INSERT *",
    "TRUNCATE TABLE gold.totals",
    "DROP TABLE gold.totals",
    "DROP VIEW IF EXISTS gold.totals",
    "DROP SCHEMA gold CASCADE",
    "ALTER TABLE gold.totals RENAME TO gold.mine",
    "ALTER TABLE gold.totals ADD COLUMN c INT",
    "CREATE SCHEMA mine",
    "CREATE TABLE mine AS SELECT 1 AS a",
    "CREATE OR REPLACE TABLE gold.totals AS SELECT 1 AS a",
    "CREATE VIEW mine AS SELECT 1 AS a",
    "CREATE TEMPORARY VIEW mine AS SELECT 1 AS a",
    "COMMENT ON TABLE gold.totals IS 'mine'",
    "PREPARE p AS SELECT 1",
    "SELECT 1; DROP TABLE gold.totals",
    "SELECT 1 --\r; DROP TABLE gold.totals",
    "SELECT 1 /* ; */; DROP TABLE gold.totals",
    "SELECT 1\u037e DROP TABLE gold.totals",
    "\ufeffDROP TABLE gold.totals",
    "DROP\u00a0TABLE gold.totals",
]
_SPARK_WRITES = [
    "FROM gold.totals INSERT INTO gold.totals SELECT *",
    "INSERT OVERWRITE TABLE gold.totals SELECT * FROM gold.totals",
    "INSERT OVERWRITE DIRECTORY '{out}' USING csv SELECT 1",
    "INSERT OVERWRITE LOCAL DIRECTORY '{out}' USING json SELECT 1",
    "INSERT OVERWRITE LOCAL DIRECTORY '{out}' ROW FORMAT DELIMITED SELECT 1",
    "INSERT INTO delta.`{root}/gold/totals` SELECT * FROM gold.totals",
    "DELETE FROM delta.`{root}/gold/totals`",
    "UPDATE delta.`{root}/gold/totals` SET user_id = 'x'",
    "ALTER TABLE gold.totals SET TBLPROPERTIES ('a' = 'b')",
    "ALTER TABLE gold.totals SET LOCATION '{outside}'",
    "ALTER VIEW gold.totals__final AS SELECT 1",
    "OPTIMIZE gold.totals",
    "VACUUM gold.totals RETAIN 0 HOURS",
    "VACUUM '{root}/gold/totals' RETAIN 0 HOURS",
    "RESTORE TABLE gold.totals TO VERSION AS OF 0",
    "REORG TABLE gold.totals APPLY (PURGE)",
    "CONVERT TO DELTA parquet.`{folder}`",
    "GENERATE symlink_format_manifest FOR TABLE delta.`{root}/gold/totals`",
    "FSCK REPAIR TABLE gold.totals",
    "MSCK REPAIR TABLE gold.totals",
    "ANALYZE TABLE gold.totals COMPUTE STATISTICS",
    "CREATE TABLE default.c SHALLOW CLONE gold.totals LOCATION '{out}'",
    "CREATE TABLE default.t USING delta LOCATION '{out}' AS SELECT 1 AS a",
    "CREATE TABLE default.t (a INT) USING csv OPTIONS (path '{secret}')",
    f"CREATE TABLE default.t USING jdbc OPTIONS {_DERBY_TABLE}",
    "CREATE EXTERNAL TABLE default.t (a STRING) LOCATION '{folder}'",
    "CREATE TABLE default.t LIKE gold.totals LOCATION '{out}'",
    "CREATE DATABASE mine LOCATION '{out}'",
    "CREATE GLOBAL TEMPORARY VIEW mine AS SELECT 1",
    "CREATE TEMPORARY VIEW mine USING csv OPTIONS (path '{secret}')",
    f"CREATE TEMPORARY VIEW mine USING jdbc OPTIONS {_DERBY_TABLE}",
    "CREATE MATERIALIZED VIEW default.m AS SELECT 1",
    "CREATE STREAMING TABLE default.s AS SELECT 1",
    "LOAD DATA LOCAL INPATH '{secret}' INTO TABLE gold.totals",
    "CACHE TABLE gold.totals",
    "CACHE LAZY TABLE mine AS SELECT 1",
    "UNCACHE TABLE gold.totals",
    "CLEAR CACHE",
    "REFRESH TABLE gold.totals",
    "REFRESH '{folder}'",
    "CALL spark_catalog.system.anything()",
    "DECLARE VARIABLE mine INT DEFAULT 5",
    "DECLARE OR REPLACE mine = 5",
    "SET VAR mine = 5",
    "DROP TEMPORARY VARIABLE IF EXISTS mine",
    "EXPLAIN INSERT INTO gold.totals SELECT * FROM gold.totals",
    "EXPLAIN EXTENDED DROP TABLE gold.totals",
    "EXPLAIN CREATE TABLE default.t USING delta LOCATION '{out}' AS SELECT 1 AS a",
    "EXECUTE IMMEDIATE 'DROP TABLE gold.totals'",
    "EXECUTE IMMEDIATE concat('DROP', ' TABLE gold.totals')",
    "BEGIN DROP TABLE gold.totals; END",
    "BEGIN DECLARE s STRING DEFAULT 'DROP TABLE gold.totals'; EXECUTE IMMEDIATE s; END",
    "BEGIN SELECT 1; INSERT INTO gold.totals SELECT * FROM gold.totals; END",
    "DROP TABLE IDENTIFIER('gold.totals')",
    "/* SELECT 1 */ DROP TABLE gold.totals",
    "/*! SELECT */ DELETE FROM gold.totals -- SELECT",
]
_SPARK_LOADS = [
    "ADD JAR '{out}/x.jar'",
    "ADD JAR ivy://org.apache.derby:derby:10.14.2.0",
    "ADD FILE '{secret}'",
    "ADD ARCHIVE '{secret}'",
    "LIST JARS",
    "LIST FILES",
    f"CREATE FUNCTION default.f AS '{_REFLECTION}'",
    "CREATE TEMPORARY FUNCTION f AS 'java.lang.Runtime'",
    "CREATE TEMPORARY FUNCTION f AS 'x.Y' USING JAR '{out}/x.jar'",
    "CREATE FUNCTION default.f(x INT) RETURNS INT RETURN x + 1",
    "CREATE TEMPORARY FUNCTION f() RETURNS STRING RETURN reflect('java.lang.System', 'exit', 1)",
    "DROP FUNCTION IF EXISTS default.f",
    "REFRESH FUNCTION default.f",
    "SELECT reflect('java.lang.System', 'getProperty', 'user.dir')",
    "SELECT java_method('java.lang.System', 'getenv', 'PATH')",
    "SELECT try_reflect('java.lang.System', 'getProperty', 'user.dir')",
    "SELECT system.builtin.reflect('java.lang.System', 'getProperty', 'user.dir')",
    "SELECT `ReFlect`('java.lang.System', 'getProperty', 'user.dir')",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'getProperty', 'user.dir')",
    "SELECT * FROM IDENTIFIER(reflect('java.lang.System', 'getProperty', 'user.dir'))",
    "SELECT * FROM gold.totals WHERE user_id = (SELECT reflect('java.lang.System', 'gc'))",
    "SELECT TRANSFORM(user_id) USING 'cat' FROM gold.totals",
    "SELECT TRANSFORM(user_id) USING 'sh -c \"touch {out}\"' AS (x STRING) FROM gold.totals",
    "FROM gold.totals MAP user_id USING 'cat'",
    "WITH t AS (SELECT TRANSFORM(user_id) USING 'cat' AS (x) FROM gold.totals) SELECT * FROM t",
    "SELECT (SELECT max(x) FROM (SELECT TRANSFORM(user_id) USING 'cat' AS (x) FROM gold.totals))",
    "EXPLAIN SELECT TRANSFORM(user_id) USING 'cat' FROM gold.totals",
    f"SELECT * FROM {_WITH_A_CLASS}",
    f"WITH t AS (SELECT * FROM {_WITH_A_CLASS}) SELECT * FROM t",
    f"SELECT * FROM {_WITH_A_CLASS}".replace("gold.totals", "IDENTIFIER('gold.totals')"),
]
_SPARK_READS = [
    "SELECT * FROM text.`{secret}`",
    "SELECT * FROM csv.`{secret}`",
    "SELECT * FROM json.`{secret}`",
    "SELECT * FROM parquet.`{folder}`",
    "SELECT * FROM orc.`{folder}`",
    "SELECT * FROM binaryFile.`{secret}`",
    f"SELECT * FROM `{_TEXT_FORMAT}`.`{{secret}}`",
    "SELECT * FROM delta.`{outside}`",
    "SELECT * FROM delta.`{root}/gold/totals`",
    "SELECT * FROM DELTA.`{root}/gold/totals` VERSION AS OF 0",
    "SELECT * FROM gold.totals JOIN text.`{secret}` ON true",
    "SELECT (SELECT max(value) FROM text.`{secret}`)",
    "WITH t AS (SELECT * FROM text.`{secret}`) SELECT * FROM t",
    "SELECT * FROM IDENTIFIER('text.`{secret}`')",
    "SELECT * FROM IDENTIFIER('delta.`{outside}`')",
    "TABLE text.`{secret}`",
    "SELECT * FROM text.`\\u002f{secret}`",
    "DESCRIBE TABLE text.`{secret}`",
    "DESCRIBE TABLE delta.`{outside}`",
    "DESCRIBE DETAIL '{outside}'",
    "DESCRIBE DETAIL delta.`{outside}`",
    "DESCRIBE HISTORY '{outside}'",
    "DESCRIBE HISTORY delta.`{outside}`",
    "DESCRIBE QUERY SELECT * FROM text.`{secret}`",
    "EXPLAIN SELECT * FROM text.`{secret}`",
    "SHOW CREATE TABLE delta.`{outside}`",
    "SHOW COLUMNS IN delta.`{outside}`",
    "SELECT * FROM read_files('{secret}')",
    "SELECT * FROM table_changes_by_path('{outside}', 0)",
    "SELECT * FROM range(1), LATERAL read_files('{secret}')",
    "SELECT * FROM range(1) JOIN LATERAL table_changes('{outside}', 0) AS t",
    "SELECT * FROM cloud_files('{folder}', 'text')",
    "SELECT * FROM STREAM text.`{secret}`",
    "SELECT * FROM python_worker_logs()",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '{secret}'))",
    "SELECT schema_of_xml('<a/>', map('rowValidationXSDPath', '{secret}'))",
    "SELECT xpath_string('<!DOCTYPE a SYSTEM \"file://{secret}\"><a/>', 'a')",
    "SELECT `XPath`('<!DOCTYPE a SYSTEM \"http://127.0.0.1:9/\"><a/>', 'a') FROM gold.totals",
    "SELECT from_avro(X'00', '\"int\"', map('avroSchemaUrl', 'file://{secret}'))",
    "SELECT from_protobuf(X'00', 'a', '{secret}')",
]
_SPARK_SETS = [
    "SET",
    "SET -v",
    "RESET",
    "RESET spark.sql.runSQLOnFiles",
    "SET spark.sql.extensions",
    "SET spark.driver.extraClassPath",
    "SET spark.hadoop.fs.s3a.secret.key",
    "SET spark.sql.extensions=x.Y",
    "SET spark.sql.warehouse.dir={out}",
    "SET spark.sql.runSQLOnFiles=true",
    "SET `spark.sql.runSQLOnFiles`=true",
    "SET spark.sql.runSQLOnFiles = true -- spark.sql.session.timeZone=UTC",
    "set/**/spark.sql.runSQLOnFiles=true",
    "SET spark.sql.session.timeZone=UTC;SET spark.sql.runSQLOnFiles=true",
    "SET spark.sql.variable.substitute=true",
    f"SET spark.sql.catalog.x={_JDBC_CATALOG}",
    "SET spark.sql.catalog.spark_catalog=x.Y",
    "SET spark.sql.defaultCatalog=x",
    "SET spark.sql.session.timeZone=${env:PATH}",
    "SET spark.sql.optimizer.excludedRules=x",
    "SET spark.sql.legacy.setCommandRejectsSparkCoreConfs=false",
    "SET spark.sql.codegen.factoryMode=x",
    "SET spark.hadoop.fs.file.impl=x.Y",
    "SET fs.file.impl=x.Y",
    "SET fs.s3a.endpoint=http://127.0.0.1:9",
    "SET io.compression.codecs=x.Y",
    "SET hive.exec.scratchdir={out}",
    "SET hive.server2.session.hook=x.Y",
    "SET hiveconf:hive.exec.scratchdir={out}",
    "SET hivevar:mine=1",
    "SET system:user.home={out}",
    "SET env:PATH=x",
    "SET metaconf:hive.metastore.try.direct.sql=true",
    "SET mapred.reduce.tasks=7",
    "SET javax.jdo.option.ConnectionURL=jdbc:derby:{out};create=true",
    "SET spark.databricks.delta.retentionDurationCheck.enabled=false",
    "SET CATALOG x",
    "USE x.y",
    "SHOW TABLES IN x.y",
]
_DUCKDB = [
    "SELECT json_serialize_plan('SELECT nosuch FROM delta_scan(''{outside}'')') FROM gold.totals",
    "SELECT json_serialize_plan('SELECT current_setting(''memory_limit'')', optimize := true)",
    "SELECT * FROM duckdb_logs, (WITH duckdb_logs AS (SELECT 1) SELECT 1)",
    "INSERT OR REPLACE INTO gold.totals VALUES ('u9', NULL)",
    "COPY (SELECT 1) TO '{out}'",
    "COPY gold.totals TO '{out}' (FORMAT parquet)",
    "COPY gold.totals FROM '{secret}'",
    "COPY FROM DATABASE memory TO other",
    "EXPORT DATABASE '{out}'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{out}'",
    "ATTACH '{out}' AS mine (TYPE duckdb)",
    "DETACH memory",
    "USE memory",
    "INSTALL httpfs",
    "FORCE INSTALL httpfs FROM community",
    "LOAD httpfs",
    "LOAD '{secret}'",
    "UPDATE EXTENSIONS",
    "SET TimeZone = 'Asia/Kolkata'",
    "SET GLOBAL enable_external_access = true",
    "SET allowed_directories = ['/']",
    "SET VARIABLE mine = 1",
    "RESET TimeZone",
    "PRAGMA database_list",
    "PRAGMA enable_profiling = 'json'",
    "PRAGMA profiling_output = '{out}'",
    "CALL pragma_version()",
    "CALL enable_profiling(save_location => '{out}')",
    "CREATE SECRET mine (TYPE s3)",
    "CREATE PERSISTENT SECRET mine (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "DROP SECRET mine",
    "CREATE MACRO mine() AS 1",
    "CREATE MACRO mine() AS TABLE SELECT * FROM read_text('{secret}')",
    "CREATE SEQUENCE mine",
    "CREATE TYPE mine AS ENUM ('a')",
    "CREATE INDEX mine ON gold.totals (user_id)",
    "EXECUTE mine",
    "DEALLOCATE mine",
    "BEGIN TRANSACTION",
    "COMMIT",
    "VACUUM",
    "ANALYZE",
    "CHECKPOINT",
    "EXPLAIN COPY (SELECT 1) TO '{out}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{out}'",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO '{out}'",
    "SELECT 1 --\n; COPY (SELECT 1) TO '{out}'",
    "SELECT $$ $$; COPY (SELECT 1) TO '{out}'",
    "SELECT 1) TO '{out}'; --",
    "WITH t AS (INSERT INTO gold.totals VALUES (1)) SELECT 1",
    "SELECT * FROM '{secret}'",
    'SELECT * FROM "{secret}"',
    "SELECT * FROM 'file://{secret}'",
    "SELECT * FROM '{folder}/*.csv'",
    "SELECT * FROM '{root}/gold/totals/../../../secret.csv'",
    "SELECT * FROM 'http://127.0.0.1:9/x.csv'",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_csv_auto(['{secret}'])",
    "SELECT * FROM read_csv('{secret}', all_varchar => true)",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM read_ndjson_objects('{secret}')",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM READ_TEXT('{secret}')",
    "SELECT * FROM \"read_text\"('{secret}')",
    "SELECT * FROM main.read_text('{secret}')",
    "SELECT * FROM system.main.read_text('{secret}')",
    "FROM read_blob('{secret}')",
    "SELECT * FROM read_parquet('{root}/gold/totals/*.parquet')",
    "SELECT * FROM parquet_scan('{root}/gold/totals/*.parquet')",
    "SELECT * FROM parquet_metadata('{root}/gold/totals/*.parquet')",
    "SELECT * FROM parquet_kv_metadata('{folder}/x.parquet')",
    "SELECT * FROM read_duckdb('{secret}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM gold.totals, glob('{root}/gold/totals/*')",
    "SELECT * FROM delta_scan('{outside}')",
    "SELECT * FROM delta_scan('file://{outside}')",
    "SELECT count(*) FROM gold.totals, delta_scan('{outside}')",
    "SELECT * FROM gold.totals, (DESCRIBE SELECT * FROM delta_scan('{outside}'))",
    "SELECT (SELECT count(*) FROM delta_scan('{outside}')) FROM gold.totals",
    "SELECT count(*) FROM gold.totals, delta_scan('{root}/gold/other')",
    "WITH t AS (FROM delta_scan('{outside}')) SELECT 1 FROM gold.totals",
    "DESCRIBE SELECT * FROM gold.totals, delta_scan('{outside}')",
    "SUMMARIZE SELECT * FROM gold.totals, delta_scan('{outside}')",
    "SELECT * FROM (SUMMARIZE FROM delta_scan('{outside}')), gold.totals",
    "SELECT * FROM (PIVOT delta_scan('{outside}') ON a IN (1) USING count(*)), gold.totals",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')",
    "SELECT * FROM query_table('{secret}')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM histogram('{secret}', a)",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM enable_logging(storage => 'file', storage_config => {'path': '{out}'})",
    "SELECT * FROM enable_profiling(save_location => '{out}', format => 'json')",
    "SELECT * FROM checkpoint()",
    "SELECT * FROM force_checkpoint('memory')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets(redact => false)",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "SELECT * FROM duckdb_extensions()",
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT * FROM duckdb_logs",
    "SELECT getenv('PATH')",
    "SELECT current_setting('secret_directory')",
    "SELECT 'secret_directory'.current_setting()",
    "SELECT system.main.current_setting('secret_directory')",
    "SELECT list_transform(['secret_directory'], lambda x: current_setting(x))",
    "SELECT 1 FROM gold.totals ORDER BY current_setting('secret_directory')",
    "SELECT write_log('mine')",
    "SELECT * FROM connection",
    "SELECT * FROM sqlite_master",
]

JDBC: Sequence[tuple[str, ...]] = (
    *((statement,) for statement in _COMMON),
    *((one,) for one in (*_SPARK_WRITES, *_SPARK_LOADS, *_SPARK_READS, *_SPARK_SETS)),
    (
        f"SET spark.sql.catalog.x={_JDBC_CATALOG}",
        "SET spark.sql.catalog.x.url=jdbc:derby:{out};create=true",
        f"SET spark.sql.catalog.x.driver={_DERBY_DRIVER}",
        "SELECT * FROM x.a.b",
    ),
    ("SET spark.sql.runSQLOnFiles=true", "SELECT * FROM text.`{secret}`"),
    ("SET spark.sql.variable.substitute=true", "SELECT '${env:PATH}' FROM text.`{secret}`"),
    ("CREATE TEMPORARY VIEW mine AS SELECT 1 AS a", "SELECT * FROM mine"),
)
SQL: Sequence[tuple[str, ...]] = (
    *((statement,) for statement in (*_COMMON, *_DUCKDB)),
    ("CREATE MACRO mine() AS 1", "SELECT mine()"),
    ("SET VARIABLE mine = 1", "SELECT * FROM read_text(getvariable('mine'))"),
    ("PREPARE p AS SELECT * FROM read_text('{secret}')", "EXECUTE p"),
)
_DERBY = {
    "spark.sql.catalog.x": _JDBC_CATALOG,
    "spark.sql.catalog.x.url": "jdbc:derby:{out};create=true",
    "spark.sql.catalog.x.driver": _DERBY_DRIVER,
}
# Settings that a connection brings along, and the statement that would make use of them.
SETTINGS: Sequence[tuple[dict[str, str], str]] = (
    (_DERBY, "SELECT * FROM x.a.b"),
    (_DERBY, "SHOW NAMESPACES IN x"),
    (_DERBY, "USE x"),
    (_DERBY | {"spark.sql.defaultCatalog": "x"}, "SELECT * FROM a.b"),
    ({"spark.sql.catalog.spark_catalog": "x.Y"}, "SELECT * FROM nothing.there"),
    ({"spark.sql.runSQLOnFiles": "true"}, "SELECT * FROM text.`{secret}`"),
    ({"spark.sql.runSQLOnFiles": "true"}, "SELECT * FROM delta.`{outside}`"),
    ({"spark.sql.variable.substitute": "true"}, "SELECT `${env:PATH}`"),
    ({"spark.sql.session.timeZone": "${env:PATH}"}, "SET spark.sql.extensions"),
    ({"spark.sql.variable.substitute": "true", "a": "text.`{secret}`"}, "SELECT * FROM ${a}"),
    ({"hive.exec.scratchdir": "{out}"}, "SET hive.exec.scratchdir"),
)


@dataclass(frozen=True)
class Scene:
    """A lake, and beside it what an attack is after.

    Attributes:
        folder: Holds all of it.
        lake: Has ``gold.totals`` and ``gold.other``.
    """

    folder: Path
    lake: Lake

    @classmethod
    def at(cls, folder: Path, lake: Lake) -> Scene:
        """Put the targets beside a lake."""
        (folder / "secret.csv").write_text(f"password,n\n{SECRET},1\n")
        with duckdb.connect() as connection:
            write_deltalake(str(folder / "outside"), connection.sql(f"SELECT '{SECRET}' AS a"))
        return cls(folder, lake)

    def fill(self, text: str) -> str:
        """Put paths into an attack."""
        paths = {
            "{root}": self.lake.root,
            "{out}": self.folder / "out",
            "{secret}": self.folder / "secret.csv",
            "{folder}": self.folder,
            "{outside}": self.folder / "outside",
        }
        for mark, path in paths.items():
            text = text.replace(mark, str(path))
        return text

    def files(self) -> set[str]:
        """Name all that lies beside and in the lake; an attack must add and change nothing."""
        return set(self._stamps())

    def _stamps(self) -> Iterator[str]:
        for place in {self.folder, Path(self.lake.root)}:
            for file in place.rglob("*"):
                yield f"{file} {file.stat().st_size if file.is_file() else ''}"
