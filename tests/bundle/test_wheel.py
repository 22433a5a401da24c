"""The wheel and the source archive: what is in them, and what an index reads of them."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from trove_classifiers import classifiers, deprecated_classifiers

from tests.bundle.project import PROJECT, read_package
from tests.bundle.wheels import build_wheel
from tidelake import __version__

INFO = f"tidelake-{__version__}.dist-info"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both archives."""
    return build_wheel(tmp_path_factory.mktemp("dist")).parent


@pytest.fixture(scope="module")
def wheel(dist: Path) -> dict[str, bytes]:
    """Contents of the wheel's files by name."""
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def sdist(dist: Path) -> dict[str, bytes]:
    """Contents of the source archive's files by name, without the folder that they are in."""
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        files = [(one.name, archive.extractfile(one)) for one in archive]
        found = {name: file.read() for name, file in files if file}
    top = f"tidelake-{__version__}/"
    assert all(name.startswith(top) for name in found)
    return {name.removeprefix(top): content for name, content in found.items()}


@pytest.fixture(scope="module")
def metadata(wheel: dict[str, bytes]) -> Metadata:
    """What the wheel says of itself, held against the specification."""
    return Metadata.from_email(wheel[f"{INFO}/METADATA"], validate=True)


def kept(*folders: str) -> set[str]:
    """List the repository's files, new ones included, what Git ignores left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders],
        cwd=PROJECT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {name for name in listed.split("\0") if (PROJECT / name).is_file()}


@pytest.mark.long
def test_the_same_commit_gives_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    build_wheel(tmp_path)
    for archive in dist.iterdir():
        assert archive.read_bytes() == (tmp_path / archive.name).read_bytes()


def test_the_wheel_holds_the_package_and_conf_and_nothing_else(wheel: dict[str, bytes]) -> None:
    package = {name.removeprefix("lib/") for name in kept("lib")}
    conf = {f"tidelake/{name}" for name in kept("conf")}
    assert {name for name in wheel if not name.startswith(f"{INFO}/")} == package | conf
    # What Git does not ignore may still not belong there.
    endings = {Path(name).suffix for name in package | conf}
    known = {".py", ".yml", ".j2", ".html", ".css", ".js", ".svg", ".json", ".lock", ".md", ".txt"}
    assert endings == known | {".typed", ".jsonl", ""}
    assert {Path(name).name for name in package | conf if not Path(name).suffix} == {"gitignore"}
    assert not [name for name in package if "tests" in Path(name).parts]
    for needed in ("conf/jars.lock", "cli/skeleton/files/databricks.yml", "py.typed"):
        assert f"tidelake/{needed}" in wheel
    scripts = wheel[f"{INFO}/entry_points.txt"].decode()
    assert all(f"{name} = " in scripts for name in read_package()["scripts"])
    assert wheel[f"{INFO}/licenses/LICENSE"] == (PROJECT / "LICENSE").read_bytes()


def test_the_source_archive_holds_the_repository(sdist: dict[str, bytes]) -> None:
    # A link to a folder is no file of the repository's.
    names = {name for name in kept() if not (PROJECT / name).is_symlink()}
    assert set(sdist) - {"PKG-INFO"} == names


def test_both_archives_have_names_and_metadata_that_agree(
    dist: Path, wheel: dict[str, bytes], sdist: dict[str, bytes]
) -> None:
    (built,) = dist.glob("*.whl")
    name, version, _, tags = parse_wheel_filename(built.name)
    (source,) = dist.glob("*.tar.gz")
    assert parse_sdist_filename(source.name) == (name, version)
    assert (name, str(version), [str(tag) for tag in tags]) == (
        "tidelake",
        __version__,
        ["py3-none-any"],
    )
    # A version with a local part is refused by indexes.
    assert version.local is None
    assert sdist["PKG-INFO"] == wheel[f"{INFO}/METADATA"]


def test_the_metadata_is_complete_and_names_no_address(
    wheel: dict[str, bytes], metadata: Metadata
) -> None:
    assert (metadata.name, str(metadata.version)) == ("tidelake", __version__)
    assert metadata.metadata_version == "2.4"
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.license_files == ["LICENSE"]
    assert metadata.summary
    assert metadata.keywords
    assert metadata.description_content_type == "text/markdown"
    # What does not stand in a file of the project cannot be true.
    fields = BytesParser().parsebytes(wheel[f"{INFO}/METADATA"], headersonly=True)
    assert not {"Project-URL", "Home-page", "Download-URL"} & set(fields)


def test_the_classifiers_exist_and_say_what_the_metadata_says(metadata: Metadata) -> None:
    named = metadata.classifiers or []
    assert named == sorted(named)
    assert set(named) <= classifiers - deprecated_classifiers.keys()
    # A license expression forbids them.
    assert not [one for one in named if one.startswith("License ::")]
    minor = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    versions = [found[1] for found in map(minor.fullmatch, named) if found]
    assert versions
    assert all(one in (metadata.requires_python or SpecifierSet()) for one in versions)


def test_what_is_required_comes_from_an_index(metadata: Metadata) -> None:
    package = read_package()
    required = metadata.requires_dist or []
    assert not [one for one in required if one.url]
    always = {one.name for one in required if one.marker is None}
    assert always == {Requirement(one).name for one in package["dependencies"]}
    assert set(metadata.provides_extra or ()) == set(package["optional-dependencies"])


def test_the_description_can_be_shown_without_the_repository(metadata: Metadata) -> None:
    text = metadata.description or ""
    blocks = MarkdownIt("commonmark").enable("table").parse(text)
    tokens = [token for block in blocks for token in (block, *(block.children or ()))]
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ .*", readme, re.MULTILINE)
    assert re.findall(r"^#+ .*", text, re.MULTILINE) == headings
    assert {"table_open", "fence", "heading_open"} <= {token.type for token in tokens}
    lost = [token.attrs["href"] for token in tokens if token.type == "link_open"]
    assert [link for link in lost if not str(link).startswith("https://")] == []
    assert not [token for token in tokens if token.type == "image" or token.info == "mermaid"]
    assert "a project, the steps, files, Kafka" in text
