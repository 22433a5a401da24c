"""The jar lock: what it admits, and that no byte outside it reaches Spark."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tidelake.errors import JarError
from tidelake.spark import java
from tidelake.spark.java import Jar, ensure_jars, read_lock

GOOD = b"the jar's bytes"
JAR = Jar("io.delta:delta-storage:4.4.0", hashlib.sha256(GOOD).hexdigest())


def write_lock(folder: Path, text: str) -> Path:
    lock = folder / "jars.lock"
    lock.write_text(text, encoding="utf-8")
    return lock


def resolver(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> list[str]:
    """Put a resolver in place that delivers these bytes, or nothing; give what it is asked for."""
    asked: list[str] = []

    def resolve(coordinates: str, cache: str) -> None:
        asked.append(coordinates)
        folder = Path(cache) / "jars"
        folder.mkdir()
        for one in coordinates.split(","):
            group, artifact, version = one.split(":")
            if content is not None:
                (folder / f"{group}_{artifact}-{version}.jar").write_bytes(content)

    monkeypatch.setattr("tidelake.spark.internals.resolve_jars", resolve)
    return asked


def test_the_lock_is_read_past_comments_and_empty_lines(tmp_path: Path) -> None:
    lock = write_lock(tmp_path, "# why\n\n  a:b:1 sha256:00ff  \n")

    assert read_lock(lock) == (Jar("a:b:1", "00ff"),)


def test_the_projects_own_lock_names_each_jar_once_with_a_whole_hash() -> None:
    locked = read_lock()

    assert locked
    assert len({jar.coordinates for jar in locked}) == len(locked)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in locked)


@pytest.mark.parametrize(
    "line", ["a:b:1", "a:b sha256:00", "a:b:1:c sha256:00", "a:b:1 00", "a:b:1 sha256:00 more"]
)
def test_a_malformed_line_is_named_with_its_number_and_the_right_form(
    tmp_path: Path, line: str
) -> None:
    lock = write_lock(tmp_path, f"# first\n{line}\n")

    with pytest.raises(
        JarError, match=r"jars\.lock, line 2: write `group:artifact:version sha256:HEX`"
    ):
        read_lock(lock)


def test_a_missing_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(JarError, match=r"nowhere\.lock cannot be read: No such file"):
        read_lock(tmp_path / "nowhere.lock")


def test_a_good_jar_in_the_cache_needs_no_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = resolver(monkeypatch, None)
    (tmp_path / JAR.file_name).write_bytes(GOOD)

    assert ensure_jars([JAR], cache=tmp_path) == [tmp_path / JAR.file_name]
    assert asked == []


def test_only_missing_jars_are_fetched_and_the_next_call_fetches_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = resolver(monkeypatch, GOOD)
    other = Jar("a:b:1", JAR.sha256)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / other.file_name).write_bytes(GOOD)

    found = ensure_jars([JAR, other], cache=cache)
    ensure_jars([JAR, other], cache=cache)

    assert asked == [JAR.coordinates]
    assert [path.read_bytes() for path in found] == [GOOD, GOOD]
    assert sorted(path.name for path in cache.iterdir()) == sorted([JAR.file_name, other.file_name])


def test_a_changed_jar_in_the_cache_is_refused_with_its_name_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, GOOD)
    path = tmp_path / JAR.file_name
    path.write_bytes(b"something else")

    with pytest.raises(JarError) as refused:
        ensure_jars([JAR], cache=tmp_path)

    assert refused.value.exit_code == 4
    for part in (JAR.coordinates, JAR.sha256, f"Delete {path}", "tidelake doctor --fetch"):
        assert part in str(refused.value)


def test_a_fetched_jar_with_another_hash_never_enters_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, b"something else")

    with pytest.raises(JarError, match=JAR.coordinates) as refused:
        ensure_jars([JAR], cache=tmp_path)

    assert refused.value.exit_code == 4
    assert list(tmp_path.iterdir()) == []


def test_a_jar_that_the_resolver_does_not_deliver_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, None)

    with pytest.raises(JarError, match=r"delta-storage:4\.4\.0 could not be fetched.*network"):
        ensure_jars([JAR], cache=tmp_path)


def test_a_cache_that_cannot_be_written_is_an_error_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, GOOD)
    (tmp_path / "file").write_text("")

    with pytest.raises(JarError):
        ensure_jars([JAR], cache=tmp_path / "file" / "jars")


def test_the_cache_folder_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(java.CACHE_VARIABLE, "/somewhere")
    assert java.cache_dir() == Path("/somewhere")

    monkeypatch.delenv(java.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert java.cache_dir() == Path("/cache/tidelake/jars")
