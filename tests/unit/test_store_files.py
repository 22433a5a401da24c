"""What a disk and a store do differently: listings, whole files, what is read again."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from s3fs import S3FileSystem

from tests.stores import Store
from tidelake import folders, object_store
from tidelake.config import FilesSource
from tidelake.delta.log import CREATION, commits, last_commit, newest_version
from tidelake.delta.tables import Lake, Table
from tidelake.errors import (
    GenerationError,
    SourceChangedError,
    SourceError,
    SourceNameError,
    UsageError,
)
from tidelake.examples import generate
from tidelake.folders import Folder, folder, list_folder, list_matching, remove_tree, write_whole
from tidelake.runtime.checkpoints import (
    batch_paths,
    complete_prepared,
    open_generation,
    prepare,
    unreadable,
)
from tidelake.runtime.landed_files import (
    check_landing,
    clean_landing,
    list_files,
    present_files,
    taken_files,
)


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, s3: Store) -> Folder:
    return tmp_path / "lake" if request.param == "disk" else folder(s3.prefix())


def put(file: Folder, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def test_a_folder_that_is_not_there_lists_nothing(place: Folder) -> None:
    assert list_folder(place) == []
    assert list_matching(place, "*/x") == []
    remove_tree(place)


def test_a_listing_has_the_files_right_in_the_folder(place: Folder) -> None:
    for name in ("b.json", "a.json", "below/c.json"):
        put(place / name, name)

    assert sorted(file.name for file in list_folder(place) if file.path.is_file()) == [
        "a.json",
        "b.json",
    ]
    assert [file.name for file in list_matching(place, "*.json")] == ["a.json", "b.json"]


def test_what_another_process_wrote_is_seen_at_once(s3: Store) -> None:
    lake = folder(s3.prefix())
    assert list_folder(lake) == []

    s3.put(f"{lake}/a.json", b"{}")
    assert [file.name for file in list_folder(lake)] == ["a.json"]
    s3.put(f"{lake}/b.json", b"{}")
    assert [file.name for file in list_folder(lake)] == ["a.json", "b.json"]


def test_a_tree_is_removed_whole_and_its_neighbour_stays(place: Folder) -> None:
    put(place / "x" / "deep" / "file", "1")
    put(place / "xy" / "file", "1")

    remove_tree(place / "x")

    assert not (place / "x").exists()
    assert (place / "xy" / "file").exists()


def test_a_file_is_written_over_and_nothing_lies_beside_it(place: Folder) -> None:
    for text in ("first", "second"):
        write_whole(place / "state" / "file.json", text)

    assert (place / "state" / "file.json").read_text(encoding="utf-8") == "second"
    assert [file.name for file in list_folder(place / "state")] == ["file.json"]


def log_of(lake: Folder, *batches: int) -> Table:
    """Write a log by hand."""
    table = Lake(lake).table("silver.shop")
    for version, batch in enumerate(batches):
        note = {"tidelake": {"generation": "g1", "batch": batch}}
        info = {"timestamp": 1, "operation": "WRITE", "userMetadata": json.dumps(note)}
        text = json.dumps({"commitInfo": info})
        put(table.path / "_delta_log" / f"{version:020}.json", text)
    return table


def test_a_commit_is_fetched_once_and_a_listing_each_time(s3: Store) -> None:
    table = log_of(folder(s3.prefix()), -1, 0, 1)
    assert [last_commit(table).batch for _ in range(2)] == [1, 1]  # type: ignore[union-attr]
    s3.requests.clear()
    s3.asked.clear()

    for _ in range(5):
        last_commit(table)
        newest_version(table)

    assert len(s3.asked) == 10
    assert not [path for _, path in s3.asked if path.endswith(".json")]


def test_a_table_that_was_deleted_and_made_anew_is_read_anew(s3: Store) -> None:
    lake = folder(s3.prefix())
    before = last_commit(log_of(lake, -1, 0, 7))
    remove_tree(lake)
    after = last_commit(log_of(lake, -1, 0, 8))

    assert before is not None
    assert after is not None
    assert (before.batch, after.batch) == (7, 8)


def test_what_is_kept_of_a_log_has_a_bound(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_CACHE_BYTES", 100)
    cache = folders._TextCache()
    lake = folder(s3.prefix())
    for number in range(10):
        s3.put(f"{lake}/{number}.json", b"x" * 60)

    assert [cache.text(file) for file in list_folder(lake)] == ["x" * 60] * 10
    assert len(cache._texts) == 1
    assert cache._bytes == 60


def test_an_interrupted_repair_leaves_a_checkpoint_that_is_refused_or_counts_for_nothing(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(place)
    table = log_of(place, -1, 0, 3)
    checkpoints = lake.checkpoints("shop", "silver")
    prepare(checkpoints / "g1", 3, ["{}"])
    assert unreadable(checkpoints / "g1", 3) == ""
    written: list[str] = []
    real = type(place).write_text

    def dies(self: Folder, *rest: object, **more: object) -> object:
        written.append(self.name)
        if len(written) == 3:
            raise KeyboardInterrupt
        return real(self, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(type(place), "write_text", dies)
    with pytest.raises(KeyboardInterrupt):
        prepare(checkpoints / "g2", 3, ["{}"])
    monkeypatch.undo()

    # The table names the generation that is whole.
    assert open_generation("shop", "silver", [table], checkpoints).generation == "g1"
    assert "metadata" in unreadable(checkpoints / "g2", 3)
    prepare(checkpoints / "g2", 3, ["{}"])
    assert unreadable(checkpoints / "g2", 3) == ""


def test_an_open_batch_gives_the_prepared_one_before_it_its_partitions(place: Folder) -> None:
    checkpoint = place / "g1"
    prepare(checkpoint, 3, ['{"offset": 1}'])
    prepared = (checkpoint / "offsets" / "3").read_text(encoding="utf-8")
    complete_prepared(checkpoint)
    assert (checkpoint / "offsets" / "3").read_text(encoding="utf-8") == prepared

    settings = {"spark.sql.shuffle.partitions": "7", "spark.sql.streaming.other": "x"}
    planned = "\n".join(["v1", json.dumps({"conf": settings}), '{"offset": 2}'])
    (checkpoint / "offsets" / "4").write_text(planned, encoding="utf-8")
    complete_prepared(checkpoint)
    done = (checkpoint / "offsets" / "3").read_text(encoding="utf-8").splitlines()
    assert json.loads(done[1])["conf"] == {"spark.sql.shuffle.partitions": "7"}
    assert [done[0], *done[2:]] == ["v1", '{"offset": 1}']
    assert (checkpoint / "offsets" / "4").read_text(encoding="utf-8") == planned


def test_small_files_are_written_without_asking_the_store_for_the_bucket(s3: Store) -> None:
    lake = folder(s3.prefix())
    s3.asked.clear()

    write_whole(lake / "state" / "file.json", "{}")
    assert [method for method, _ in s3.asked] == ["PUT"]
    prepare(lake / "g1", 3, ["{}"])
    of_the_bucket = [one for one in s3.asked if one[1].partition("?")[0].strip("/") == "tidelake"]
    assert {(method, "list-type=2" in path) for method, path in of_the_bucket} == {("GET", True)}


def test_files_are_not_generated_into_a_bucket_that_is_not_there(s3: Store) -> None:
    with pytest.raises(UsageError, match="the folder s3://no-such-bucket/in: there is no such"):
        generate("clickstream", folder("s3://no-such-bucket/in"), events=10, seed=1)

    assert "no-such-bucket" not in {one["Name"] for one in s3.client.list_buckets()["Buckets"]}
    into = s3.prefix()
    assert generate("clickstream", folder(into), events=10, seed=1).written == len(s3.keys(into))


def test_a_bucket_that_is_gone_is_not_taken_for_a_checkpoint_that_is(
    s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = folder(s3.prefix())
    tables, checkpoints = [log_of(lake, -1, 0)], Lake(lake).checkpoints("shop", "silver")
    with pytest.raises(GenerationError, match="its checkpoint is gone"):
        open_generation("shop", "silver", tables, checkpoints)

    def gone(**_: object) -> object:
        raise ClientError({"Error": {"Code": "NoSuchBucket"}}, "ListObjectsV2")

    monkeypatch.setattr(object_store, "_client", gone)
    with pytest.raises(UsageError, match="there is no such bucket"):
        open_generation("shop", "silver", tables, checkpoints)


def test_a_checkpoint_without_a_batch_is_left_to_the_query(place: Folder) -> None:
    prepare(place / "g1", CREATION, [])

    assert list_folder(place / "g1") == []


def test_no_checkpoint_resumes_after_the_first_batch(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot resume after batch 0"):
        prepare(tmp_path / "g1", 0, ["{}"])
    assert not (tmp_path / "g1").exists()


def test_a_source_on_a_store_offers_objects_and_no_hidden_ones(s3: Store) -> None:
    root = f"{s3.prefix()}/landing"
    hidden = (".hidden", "_tmp/d.jsonl", "_day=1/_metadata")
    for name in ("a b.jsonl", "sub/c.jsonl", "_day=1/_metadata.d/e.jsonl", "sub/", *hidden):
        s3.put(f"{root}/{name}", b"{}\n" if not name.endswith("/") else b"")
    s3.put(f"{root}-other/e.jsonl", b"{}\n")

    found = list_files(root)

    names = ("_day=1/_metadata.d/e.jsonl", "a b.jsonl", "sub/c.jsonl")
    assert list(found) == [f"{root}/{name}" for name in names]
    assert {file.size for file in found.values()} == {3}
    assert {file.modified % 1000 for file in found.values()} == {0}


@pytest.mark.parametrize("name", ["/x.jsonl", "sub//x.jsonl", "./x.jsonl", "sub/../x.jsonl"])
def test_an_object_that_spark_would_read_under_another_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The client of these tests would not send such a name as it is."""
    entry = {"type": "file", "size": 3, "LastModified": datetime(2026, 1, 1, tzinfo=UTC)}
    names = ("a.jsonl", "sub/", "_tmp//hidden.jsonl", name)
    listed = {one: {**entry, "name": f"bucket/landing/{one}"} for one in names}
    monkeypatch.setattr(S3FileSystem, "find", lambda *_, **__: listed)

    with pytest.raises(SourceNameError, match=rf"landing/{re.escape(name)}, .* //, /\./ or "):
        list_files("s3://bucket/landing")
    del listed[name]
    assert list(list_files("s3://bucket/landing")) == ["s3://bucket/landing/a.jsonl"]


def test_a_source_on_a_store_that_holds_nothing_is_named(s3: Store) -> None:
    with pytest.raises(SourceError, match="holds no file, or does not exist"):
        list_files(f"{s3.prefix()}/landing")


def test_a_source_may_be_one_object(s3: Store) -> None:
    place = s3.put(f"{s3.prefix()}/landing/a.jsonl", b"{}\n")

    assert list(list_files(place)) == [place]


def test_an_object_in_a_batch_is_looked_at_where_it_lies(s3: Store) -> None:
    root = s3.prefix()
    place = s3.put(f"{root}/landing/50% of b.jsonl", b"{}\n")
    checkpoint = folder(f"{root}/checkpoint")
    entry = {"path": place.replace("%", "%25").replace(" ", "%20"), "timestamp": 1, "batchId": 0}
    put(checkpoint / "sources" / "0" / "0", "v1\n" + json.dumps(entry))
    put(checkpoint / "offsets" / "0", 'v1\n{}\n{"logOffset":0}')

    assert present_files(batch_paths(checkpoint, 0)) == [list_files(f"{root}/landing")[place]]


def test_an_object_with_other_bytes_than_were_taken_is_refused(s3: Store) -> None:
    root = s3.prefix()
    place = s3.put(f"{root}/landing/a.jsonl", b"{}\n")
    was = list_files(f"{root}/landing")[place]
    bronze = Lake(folder(root)).bronze("shop")
    note = {"generation": "g1", "batch": 0, "files": [[place, was.size, was.modified, 1]]}
    info = {"timestamp": 1, "userMetadata": json.dumps({"tidelake": note})}
    put(bronze.path / "_delta_log" / f"{0:020}.json", json.dumps({"commitInfo": info}))
    check_landing((f"{root}/landing",), taken_files(commits(bronze)))

    s3.put(place, b"{}\n{}\n")

    with pytest.raises(SourceChangedError, match="3 bytes when read, 6 bytes now"):
        check_landing((f"{root}/landing",), taken_files(commits(bronze)))


@pytest.mark.parametrize("mode", ["delete", "archive"])
def test_objects_are_deleted_or_archived_and_none_is_replaced(s3: Store, mode: str) -> None:
    root = s3.prefix()
    for name in ("a b.jsonl", "deep/b.jsonl", "c.jsonl", "d.jsonl"):
        s3.put(f"{root}/in/{name}", b"{}\n")
    # The first was copied before a run ended, the second is another's.
    s3.put(f"{root}/old/deep/b.jsonl", b"{}\n")
    s3.put(f"{root}/old/c.jsonl", b"other")
    taken = list_files(f"{root}/in")
    s3.put(f"{root}/in/d.jsonl", b"{}\n{}\n")
    keys = {"archive_dir": f"{root}/old"} if mode == "archive" else {}
    source = FilesSource.model_validate(
        {"kind": "files", "path": f"{root}/in", "clean_source": mode, **keys}
    )

    with pytest.raises(SourceChangedError, match=r"d\.jsonl: 3 bytes when read, 6 bytes now"):
        clean_landing(source, taken.values())
    problems = clean_landing(source, [file for path, file in taken.items() if "d." not in path])

    left = {key.split("/in/")[-1] for key in s3.keys(f"{root}/in/")}
    if mode == "delete":
        assert (problems, left) == ([], {"d.jsonl"})
        return
    assert problems == [f"{root}/in/c.jsonl: another file is at {root}/old/c.jsonl"]
    assert left == {"c.jsonl", "d.jsonl"}
    assert s3.get(f"{root}/old/a b.jsonl") == s3.get(f"{root}/old/deep/b.jsonl") == b"{}\n"
    assert s3.get(f"{root}/old/c.jsonl") == b"other"
