"""What `tidelake sql` refuses, and that the statements people ask with still run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks import JDBC, SECRET, SQL, Scene
from tests.unit.handmade import write_rows
from tidelake.cli.prompt import Catalogue, Conversation, answer_all
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.ledger.query import AnswerFile, ask_for_user, write_for_user
from tidelake.ledger.statements import SPARK, tables_in

_NOTE = {"generation": "g1", "batch": 0, "hop": "gold"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Give a lake of two tables, and what attacks are after."""
    folder = tmp_path_factory.mktemp("attacked")
    lake = Lake(folder / "it's a lake")
    for name in ("totals", "other"):
        write_rows(lake.gold(name), "SELECT 'u1' AS user_id, 1 AS n", note=_NOTE)
    return Scene.at(folder, lake)


@pytest.fixture
def scene(made: Scene) -> Iterator[Scene]:
    """Give the same, which must be left as it was."""
    before = made.files()
    yield made
    assert made.files() == before


def test_every_attack_on_sql_is_refused_by_name(scene: Scene) -> None:
    answered = []
    for statement in (scene.fill(one) for steps in SQL for one in steps):
        try:
            answered.append((statement, ask_for_user(scene.lake, statement)))
        except UsageError as error:
            assert error.exit_code == 2
            assert SECRET not in str(error)
    assert answered == []


def test_an_answer_that_goes_to_a_file_is_no_way_around(scene: Scene) -> None:
    on_files = [one for steps in SQL for one in steps if "{out}" in one or "{secret}" in one]
    for statement in on_files[::2]:
        with pytest.raises(UsageError):
            write_for_user(scene.lake, scene.fill(statement), AnswerFile(scene.folder / "a.csv"))


def test_the_prompt_refuses_what_the_command_refuses(scene: Scene) -> None:
    shown: list[str] = []
    conversation = Conversation(Catalogue(scene.lake), shown.append, shown.append, lambda: 80)

    for steps in (one for one in SQL if len(one) > 1):
        assert answer_all(conversation, ";\n".join(scene.fill(one) for one in steps)) == 2
    assert shown == []


def test_every_attack_in_the_words_of_a_catalog_is_refused_before_spark(scene: Scene) -> None:
    passed = []
    for statement in (scene.fill(one) for steps in JDBC for one in steps):
        try:
            tables_in(statement, scene.lake, dialect=SPARK)
            passed.append(statement)
        except UsageError:
            pass
    assert passed == []


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT t.n FROM gold.totals t JOIN gold.other o USING (user_id)",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n FROM r) SELECT n FROM r",
        "WITH a AS (SELECT n FROM gold.totals), b AS (SELECT * FROM a) SELECT * FROM b",
        "SELECT 1 FROM gold.totals WHERE n IN (SELECT n FROM gold.other)",
        "SELECT n FROM gold.totals UNION SELECT n FROM gold.other",
        "SELECT 1 AS \"read_text('x')\" FROM gold.totals -- COPY gold.totals TO 'x'",
        "SELECT 1 FROM range(1)",
        "SELECT 1 FROM gold.totals, json_each('{\"a\": 1}')",
        "SELECT list_transform([n], lambda x: x)[1] FROM gold.totals",
        "SELECT * FROM (PIVOT gold.totals ON user_id IN ('u1') USING sum(n))",
        "SELECT n FROM gold.totals QUALIFY row_number() OVER (PARTITION BY user_id ORDER BY n) = 1",
        "FROM (SELECT 1 FROM information_schema.schemata LIMIT 1)",
        "SELECT /* /* */ ; */ 1",
    ],
)
def test_queries_on_the_lakes_tables_are_answered(scene: Scene, statement: str) -> None:
    assert ask_for_user(scene.lake, statement).rows == ((1,),)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM gold.totals t JOIN gold.other o ON t.n = o.n",
        "WITH a AS (SELECT * FROM gold.totals) SELECT * FROM a",
        "SELECT * FROM gold.totals LATERAL VIEW explode(array(n)) e AS x",
        "SELECT * FROM gold.totals, LATERAL (SELECT n + 1 AS m)",
        "SELECT * FROM gold.totals LATERAL VIEW OUTER posexplode_outer(array(n)) e AS p, x",
        "SELECT * FROM range(5)",
        "DESCRIBE gold.totals",
    ],
)
def test_queries_in_the_words_of_a_catalog_pass(scene: Scene, statement: str) -> None:
    tables_in(statement, scene.lake, dialect=SPARK)
