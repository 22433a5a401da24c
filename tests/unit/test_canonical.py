"""The canonical form of a file: one order, one spelling, the same content, each comment."""

from __future__ import annotations

import random
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.test_config_loading import LAPTOP
from tests.unit.test_json_schema import FILES
from tidelake.config import load_pipeline
from tidelake.config.canonical import canonical
from tidelake.config.json_schema import FileKind, schema_of

_SUITE = "name: s\nexpectations:\n  - type: expect_column_to_exist\n    kwargs: {column: n}\n"


def formed(text: str, kind: FileKind = "pipeline") -> str:
    """Return the canonical form; the second time it changes nothing."""
    schema = schema_of(kind)
    found = canonical(dedent(text), schema)
    assert canonical(found, schema) == found
    return found


def assert_formed(text: str, expected: str) -> None:
    assert formed(text) == dedent(expected)


@pytest.mark.parametrize(("kind", "file"), FILES, ids=lambda one: getattr(one, "stem", one))
def test_the_files_of_the_repository_keep_their_content(
    kind: FileKind, file: Path, tmp_path: Path
) -> None:
    text = file.read_text()
    found = formed(text, kind)
    assert _in_order(yaml.safe_load(found)) == _in_order(yaml.safe_load(text))
    if kind == "pipeline":
        (tmp_path / "expectations").mkdir()
        for suite in (one for of, one in FILES if of == "suite"):
            (tmp_path / "expectations" / suite.name).write_text(formed(suite.read_text(), "suite"))
        (tmp_path / "pipelines").mkdir()
        copy = tmp_path / "pipelines" / file.name
        copy.write_text(found)
        loaded = load_pipeline(str(copy), LAPTOP)
        links = {"file": str(file), "dimensions": load_pipeline(str(file), LAPTOP).dimensions}
        assert loaded.model_copy(update=links) == load_pipeline(str(file), LAPTOP)


def _in_order(content: Any) -> Any:
    """Return maps whose keys are the user's as pairs, because tables follow their order."""
    if isinstance(content, list):
        return [_in_order(one) for one in content]
    if not isinstance(content, dict):
        return content
    own = ("select", "columns", "measures", "derive", "comments", "on", "spark", "kwargs")
    return {
        key: list(value.items()) if key in own and isinstance(value, dict) else _in_order(value)
        for key, value in content.items()
    }


def test_keys_come_in_the_order_of_the_models_with_the_name_first() -> None:
    assert_formed(
        """
        gold:
        - measures: {b: {p: 0.5, approx_percentile: n}, a: {count: "*"}}
          window:
            slide: 1 hour
            kind: hopping
            size: 2 hours
          name: t
        source: {topic: a, bootstrap: h, kind: kafka}
        event:
          select: {z: n, a: n}
          schema: n INT
        description: What
        for_each: [{z: a, b: c}]
        name: x
        """,
        """\
        name: x
        for_each: [{z: a, b: c}]
        description: What
        source: {kind: kafka, bootstrap: h, topic: a}
        event:
          schema: n INT
          select: {z: n, a: n}
        gold:
          - name: t
            window:
              kind: hopping
              size: 2 hours
              slide: 1 hour
            measures: {b: {approx_percentile: n, p: 0.5}, a: {count: "*"}}
        """,
    )


def test_suites_and_environments_are_sorted_too() -> None:
    text = (
        "gold: {}\nexpectations:\n- severity: warning\n  kwargs: {b: 1, a: 2}\n  type: x\nname: s\n"
    )
    assert formed(text, "suite") == (
        "name: s\nexpectations:\n  - type: x\n    kwargs: {b: 1, a: 2}\n    severity: warning\n"
        "gold: {}\n"
    )
    text = "metrics: {keep: 1 day, table: true}\nspark: {b: 1, a: 2}\nroot: lake\n"
    assert formed(text, "environment") == (
        "root: lake\nspark: {b: 1, a: 2}\nmetrics: {table: true, keep: 1 day}\n"
    )


def test_comments_go_with_the_key_or_item_that_they_are_about() -> None:
    assert_formed(
        """
        # The file.

        # About the event.
        event:   # beside event
          # about time
          time: at
          # about id
          id: n   # beside id
          # the end of event

        # about the source
        source:
          kind: rate
        # about the name
        name: x
        gold:
        # about the first table
        - window: {kind: global}    # beside the window
          # about its name
          name: t

        # about the second
        -   # behind the dash
          name: u
        # the end of the file
        """,
        """\
        # The file.

        # about the name
        name: x

        # about the source
        source:
          kind: rate
        # About the event.
        event:   # beside event
          # about id
          id: n   # beside id
          # about time
          time: at
          # the end of event
        gold:
          # about the first table
          # about its name
          - name: t
            window: {kind: global}  # beside the window

          # about the second
          # behind the dash
          - name: u
        # the end of the file
        """,
    )


def test_a_comment_indented_as_the_next_key_is_about_that_key() -> None:
    assert_formed(
        """
        gold:
        - name: t
        # about the joins
        joins:
        - name: u
          # about u
        # the end
        """,
        """        gold:
          - name: t
        # about the joins
        joins:
          - name: u
            # about u
        # the end
        """,
    )


def test_a_comment_on_top_stays_on_top() -> None:
    assert formed("# The shop.\nkind: events\nname: shop\n") == (
        "# The shop.\nname: shop\nkind: events\n"
    )


def test_braces_stay_on_one_line_or_become_a_block_with_the_comments_in_them() -> None:
    assert_formed(
        """
        dedup: { ttl:   1 hour,beyond_ttl: merge }
        enrich: []
        watermark: {  # beside
          # about the delay
          delay: 1 hour,   # an hour
          idle_after: 1 hour
          # the end
        }
        gold: [
          {name: t},  # beside t
          {name: u,
           keys: [a, b]}]
        """,
        """\
        watermark:    # beside
          # about the delay
          delay: 1 hour    # an hour
          idle_after: 1 hour
          # the end
        dedup: {ttl: 1 hour, beyond_ttl: merge}
        enrich: []
        gold:
          - {name: t}  # beside t
          - name: u
            keys: [a, b]
        """,
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"lower(a)"', "lower(a)"),
        ("'a, b'", "a, b"),
        ("\"action = 'click'\"", "action = 'click'"),
        ("'a: b'", '"a: b"'),
        ("'a #b'", '"a #b"'),
        ("'*'", '"*"'),
        ("'yes'", '"yes"'),
        ("'1'", '"1"'),
        ("'1e3'", '"1e3"'),
        ("'2026-01-05'", '"2026-01-05"'),
        ("''", '""'),
        (r'"\\d: x"', r"'\d: x'"),
        (r'"a\nb"', r'"a\nb"'),
        (r'"\u202ea"', r'"\u202Ea"'),
        ('"größe"', "größe"),
        ("yes", "true"),
        ("False", "false"),
        ("~", "null"),
        ("", "null"),
        ("0x10", "0x10"),
        ("!!str 1", '!!str "1"'),
        ("a\n  b", "a b"),
        ('"a\n  b"', "a b"),
    ],
)
def test_quotes_stand_only_where_they_are_needed(written: str, expected: str) -> None:
    assert formed(f"description: {written}\n") == f"description: {expected}\n"


def test_in_braces_more_texts_need_quotes() -> None:
    text = 'comments: {a: "b, c", "on": "x y", k: "h:1"}\n'
    assert formed(text) == 'comments: {a: "b, c", "on": x y, k: "h:1"}\n'


@pytest.mark.parametrize("style", [">-", "|", "|+", ">"])
def test_lines_of_a_block_text_are_kept_and_indented(style: str) -> None:
    text = f"event:\n    where: {style}  # why\n       a\n         b\n\n       c\n\n    id: n\n"
    found = formed(text)
    assert found.startswith(f"event:\n  where: {style}  # why\n    a\n      b\n\n    c\n")
    assert yaml.safe_load(found) == yaml.safe_load(text)


def test_anchors_and_aliases_are_kept_and_their_files_not_sorted() -> None:
    text = "source: &s {kind: rate}\nname: &n x\nevent: &e\n  <<: *s\n  id: *n\ngold: [*e]\n"
    assert formed(text) == text


def test_a_windows_file_gets_the_lines_of_others() -> None:
    assert formed("\ufeffname: x\r\nkind: events # c\r\n") == "name: x\nkind: events  # c\n"


def test_a_form_with_another_content_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelake.config.canonical._scalar", lambda *_: "other")
    with pytest.raises(ValueError, match="would differ"):
        formed(_SUITE, "suite")
    monkeypatch.setattr("tidelake.config.canonical._scalar", lambda *_: "'")
    with pytest.raises(ValueError, match="would differ"):
        formed(_SUITE, "suite")


def test_comments_within_nested_items_come_above_the_outer_one() -> None:
    found = formed("name: [[[  # beside\n# comment\n'on']]]\n")
    assert found == 'name:\n  # beside\n  # comment\n  - - - "on"\n'


def test_a_comment_behind_the_mark_of_a_key_comes_above_it() -> None:
    text = "name:\n  ? |  # of the key\n    a\n    b\n  : |  # of the value\n    c\n"
    assert formed(text) == 'name:\n  # of the key\n  "a\\nb\\n": |  # of the value\n    c\n'


_TEXTS = st.one_of(
    st.sampled_from(
        ["on", "~", "1e3", "a: b", "# x", "- a", "a\nb\n", "\n a", "'\"", "\u202e", "\\"]
    ),
    st.text(max_size=8),
)
_VALUES = st.recursive(
    st.one_of(_TEXTS, st.integers(), st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_TEXTS, inner, max_size=3)
    ),
    max_leaves=8,
)
_KEYS = st.sampled_from(["name", "gold", "source", "event", "description", "x"])


@settings(max_examples=60)
@given(
    st.dictionaries(_KEYS, _VALUES, min_size=1),
    st.sampled_from([None, True, False]),
    st.sampled_from([20, 1000]),
    st.sampled_from([None, "'", "|"]),
    st.randoms(use_true_random=False),
)
def test_any_file_keeps_its_content_and_comments(
    content: dict[str, Any],
    flow: bool | None,
    width: int,
    style: str | None,
    dice: random.Random,
) -> None:
    text = yaml.dump(content, default_flow_style=flow, width=width, default_style=style)
    assume("&id" not in text)
    lines = []
    for line in text.split("\n"):
        if dice.random() < 0.3:
            lines.append(" " * dice.randint(0, 6) + f"# comment {len(lines)}")
        lines.append(f"{line}  # beside {len(lines)}" if line and dice.random() < 0.2 else line)
    commented = "\n".join(lines)
    try:
        # A comment inside of a text would be a part of it.
        assume(yaml.safe_load(commented) == yaml.safe_load(text))
    except (yaml.YAMLError, KeyError, ValueError):
        assume(False)
    found = formed(commented)
    assert yaml.safe_load(found) == content
    assert found.count("# comment") == commented.count("# comment")


@pytest.mark.parametrize(
    "value",
    [
        "&positive |  # only paid rows\n  n > 0\n  AND i <> 1",
        "!!str |  # only paid rows\n  n > 0",
        "|2  # only paid rows\n    n > 0",
        "|  # only paid rows\n",
        "|-  # only paid rows\n  n > 0\n",
    ],
)
def test_the_comment_of_a_text_over_several_lines_stays(value: str) -> None:
    text = f"where: {value}\nname: shop\n"
    formed = canonical(text, {})
    assert formed.count("# only paid rows") == 1
    assert yaml.safe_load(formed) == yaml.safe_load(text)
    assert canonical(formed, {}) == formed


def test_a_comment_behind_the_brace_of_an_item_stays_above_it() -> None:
    text = "gold:\n  - {  # the totals\n      name: t,\n      keys: [a]\n    }\n"
    formed = "gold:\n  # the totals\n  - name: t\n    keys: [a]\n"
    assert canonical(text, {}) == formed


def test_keys_may_be_of_any_kind() -> None:
    text = "meta: {2026-01-05: reviewed, owner: me, 1: a}\n"
    assert yaml.safe_load(canonical(text, {})) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_defaults_without_content_are_left_as_they_are(text: str) -> None:
    assert canonical(text, schema_of("pipeline")) == text
