"""Do with files what a disk and an object store do differently."""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from tidelake.store.folders import Folder

_KEPT_BYTES = 64 << 20


@dataclass(frozen=True)
class Listed:
    """A file as a listing told of it.

    Attributes:
        path: Where it is.
        tag: Changes with its content; empty on a disk, where reading it costs little.
    """

    path: Folder
    tag: str = ""

    @property
    def name(self) -> str:
        """Its last part."""
        return str(self.path.name)

    @property
    def stem(self) -> str:
        """The same without the suffix."""
        return str(self.path.stem)

    def text(self) -> str:
        """Read it; on a store, what was read under the same tag before is not fetched again."""
        if not self.tag:
            return self.path.read_text(encoding="utf-8")
        return _memory.text(self)


def list_folder(folder: Folder) -> list[Listed]:
    """List the files right in a folder, in one request; none where it does not exist."""
    if isinstance(folder, Path):
        return [Listed(file) for file in folder.glob("*")]
    try:
        entries = folder.fs.ls(folder.path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # The size goes with the tag: parts of other lengths may come to the same one.
    return [
        Listed(folder / entry["name"].rsplit("/", 1)[-1], f"{entry['ETag']} {entry['size']}")
        for entry in entries
        if entry["type"] == "file" and not entry["name"].endswith("/")
    ]


def matching(folder: Folder, pattern: str) -> list[Folder]:
    """List what a pattern matches below a folder, in the order of the names."""
    found: list[Folder] = list(folder.glob(pattern))
    return sorted(found, key=str)


def remove_tree(folder: Folder) -> None:
    """Remove a folder and all that is in it; nothing where it does not exist."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    found = folder.fs.find(folder.path)
    if found:
        folder.fs.rm(found)


def write_whole(file: Folder, text: str) -> None:
    """Write a file whole or not at all; readers see the old one until then."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(file, Path):
        # A store shows an object when all of it is there.
        file.write_text(text, encoding="utf-8")
        return
    written = file.with_name(f".{file.name}")
    written.write_text(text, encoding="utf-8")
    written.rename(file)


class _Memory:
    """Keeps texts that were fetched, the ones used last, up to a number of bytes."""

    def __init__(self) -> None:
        self._texts: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def text(self, file: Listed) -> str:
        place = (str(file.path), file.tag)
        with self._lock:
            if place in self._texts:
                self._texts.move_to_end(place)
                return self._texts[place]
        # Not through the file's own method, which asks for its size first.
        data: bytes = file.path.fs.cat_file(file.path.path)  # type: ignore[union-attr]
        text = data.decode("utf-8")
        with self._lock:
            if place not in self._texts:
                self._texts[place] = text
                self._bytes += len(data)
            while self._bytes > _KEPT_BYTES and len(self._texts) > 1:
                _, gone = self._texts.popitem(last=False)
                self._bytes -= len(gone.encode("utf-8"))
        return text


_memory = _Memory()
