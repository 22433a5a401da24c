"""The documents' install lines, as somebody types them who has a wheel, Python and Java."""

from __future__ import annotations

import re
import shlex
import subprocess
import venv
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from tests.bundle.project import PROJECT, read_package
from tests.bundle.wheels import build_wheel, outside
from tests.typed import PROMPT, blocks_of
from tidelake import __version__
from tidelake.spark.java import read_lock

PAGE = "docs/install.md"
SKELETON = PROJECT / "lib/tidelake/cli/skeleton/files"
TEXTS = {
    str(path.relative_to(PROJECT)): path.read_text(encoding="utf-8")
    for path in (
        PROJECT / "README.md",
        *sorted((PROJECT / "docs").rglob("*.md")),
        *sorted(path for path in SKELETON.rglob("*") if path.is_file()),
        *sorted((PROJECT / "lib").rglob("*.py")),
    )
    # A decision keeps what was true when it was made.
    if "adr" not in path.parts
}
_CALL = re.compile(r"pip install ((?:'[^']*'|[^\s'`\"#)])+(?: (?:'[^']*'|[-.\w/]+))*)")
INSTALLS = [(name, words) for name, text in TEXTS.items() for words in _CALL.findall(text)]
# Packages of the development's environment and of the site's.
EXTRAS = read_package()["optional-dependencies"].keys() - {"dev", "docs"}


def problem_of(words: str) -> str:
    """Say what is untrue of what is given to ``pip install``; empty when nothing is."""
    for word in shlex.split(words):
        if word.startswith("--"):
            continue
        name, _, extras = word.removesuffix("]").partition("[")
        unknown = set(filter(None, extras.split(","))) - EXTRAS
        if unknown:
            return f"there is no extra {', '.join(sorted(unknown))}"
        if name.endswith(".whl"):
            if str(parse_wheel_filename(Path(name).name)[1]) != __version__:
                return f"{name} is another version's"
        elif name.endswith((".lock", ".txt")):
            if not any((folder / name).is_file() for folder in (PROJECT, SKELETON)):
                return f"there is no file {name}"
        elif name == "tidelake":
            # Only where it is installed: pip keeps it, and adds what the extra needs.
            if not extras:
                return "no index has tidelake"
        elif name not in ("-r", "pytest", "{extra}"):
            return f"{name} is unknown"
    return ""


@pytest.mark.parametrize(("document", "words"), INSTALLS)
def test_each_line_installs_what_there_is(document: str, words: str) -> None:
    assert problem_of(words.replace("{extra}", "kafka")) == "", document


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("tidelake", "no index has"),
        ("'tidelake[spark]'", "no extra spark"),
        ("'tidelake[dev]'", "no extra dev"),
        ("'dist/tidelake-9.9-py3-none-any.whl[local]'", "another version"),
        ("--require-hashes -r other.lock", "no file other.lock"),
        ("tide-lake", "is unknown"),
    ],
)
def test_an_untrue_line_is_found(words: str, problem: str) -> None:
    assert problem in problem_of(words)


def test_lines_were_found_everywhere() -> None:
    found = {name for name, _ in INSTALLS}
    assert {PAGE, "docs/index.md", "lib/tidelake/spark/session.py"} <= found
    assert len(INSTALLS) == sum(text.count("pip install ") for text in TEXTS.values())


def test_a_page_that_adds_an_extra_says_how_tidelake_is_installed() -> None:
    for name, text in TEXTS.items():
        if name.startswith("docs/") and f"{PROMPT}pip install 'tidelake[" in text:
            assert name == PAGE or "install.md)" in text, name


def test_no_text_names_a_registry() -> None:
    files = [PROJECT / "pyproject.toml", *(PROJECT / "scripts").iterdir()]
    texts = [*TEXTS.values(), *(path.read_text(encoding="utf-8") for path in files)]
    hosts = re.compile(r"\bpypi\.org|pythonhosted|\bPyPI\b", re.IGNORECASE)
    assert not [found for text in texts if (found := hosts.search(text))]


def test_the_page_lists_each_extra_once() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", TEXTS[PAGE], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(EXTRAS)


def lines_of(heading: str) -> list[list[str]]:
    """Give the commands of each block below a heading of the page."""
    section = TEXTS[PAGE].split(f"## {heading}\n")[1].split("\n## ")[0]
    return [
        [line.removeprefix(PROMPT).split("  #")[0].rstrip() for line in block.lines]
        for block in blocks_of(section)
    ]


def type_in(folder: Path, *lines: str, **variables: str) -> str:
    """Run lines in one shell, which ends at the first that fails, and give what they print."""
    done = subprocess.run(
        ["bash", "-ec", "\n".join(lines)],
        cwd=folder,
        env=outside() | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variable that lets pip take the tested versions; in constraints it allows no hashes."""
    lock = (PROJECT / "requirements-runtime.lock").read_text(encoding="utf-8")
    file = tmp_path_factory.mktemp("pip") / "constraints.txt"
    file.write_text("\n".join(re.findall(r"^[a-z0-9][^\\\n]*", lock, re.MULTILINE)))
    return {"PIP_CONSTRAINT": str(file), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that has nothing but the two archives, in ``dist``."""
    build_wheel(tmp_path / "elsewhere" / "dist")
    return tmp_path / "elsewhere"


@pytest.mark.long
def test_a_project_begins_with_nothing_but_the_wheel(
    folder: Path, versions: dict[str, str]
) -> None:
    venv.create(folder / "env", with_pip=True)
    (wheel,) = folder.glob("dist/*.whl")
    begin = ". env/bin/activate"
    type_in(folder, begin, f"pip install -q {wheel}", **versions)

    made = type_in(folder, begin, "tidelake new shop", "cd shop", "tidelake validate --all")
    assert "orders: ok" in made
    type_in(folder / "shop", ". ../env/bin/activate", "tidelake fmt --check")
    # As an extra asks for it; nothing of Tidelake comes from an index.
    (added,) = lines_of("Extras")
    told = type_in(folder, begin, *added, **versions)
    assert "Requirement already satisfied: tidelake[kafka]" in told
    type_in(folder, begin, "python -c 'import avro, confluent_kafka'")
    # The project's own list of requirements; what is there already is not downloaded.
    type_in(folder / "shop", "mkdir wheels", "cp ../dist/*.whl wheels")
    listed = "pip install --dry-run --no-deps -r requirements.txt"
    assert "tidelake" in type_in(folder / "shop", ". ../env/bin/activate", listed, **versions)


@pytest.mark.long
def test_the_lines_of_the_page_give_a_demo_in_an_empty_folder(
    folder: Path, versions: dict[str, str]
) -> None:
    lines, locked = lines_of("From a wheel")
    assert lines[0] == "make dist"
    jars = {"TIDELAKE_JARS": str(folder / "jars")}

    type_in(folder, *lines[1:], **versions, **jars)
    begin = ". env/bin/activate"
    demo = type_in(folder, begin, "tidelake demo --events 2000", **jars)

    assert "Ledger of clickstream: balanced" in demo
    assert (folder / "lakehouse" / "gold" / "user_sessions" / "_delta_log").is_dir()
    assert len([*(folder / "jars").glob("*.jar")]) == len(read_lock())
    # The same versions by their hashes, with what all extras need.
    (folder / "requirements-runtime.lock").symlink_to(PROJECT / "requirements-runtime.lock")
    type_in(folder, begin, *locked)
    assert __version__ in type_in(folder, begin, "tidelake --version")
