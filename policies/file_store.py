"""Bytes under one folder of any fsspec file system, with writes that survive a kill.

Two guarantees carry the run directory, whatever the file system:

* `FileStore.replace` leaves the old or the new content under a name, never a part of either.
* `FileStore.create` lets exactly one of several writers create a name.

Object stores give both, since an object appears when its upload closes. On local disks a temporary
file is written, synced and then renamed or hard-linked to its name: fsspec's local `xb` is
exclusive but not atomic, so a kill inside it leaves half a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from policies.errors import ConfigError, RunError

TEMPORARY_PREFIX = ".tmp-"
"""Names of unfinished local files start with this; a kill may leave them behind."""

_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
# What `os.link` raises on file systems without hard links (exFAT, many FUSE and container mounts).
_NO_LINKS = {
    errno.EPERM,
    errno.EACCES,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.EMLINK,
    errno.EXDEV,
}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF, errno.EISDIR}
_SYNC_LANES = 8


class FileStore:
    """Files below one URL, addressed by names relative to it ("versions/00000001/manifest.json").

    Every failure of the file system is a `RunError` of one line that names the file. A file that
    is absent is no failure: `read` and `size` return None, `remove` does nothing. On local disks a
    symbolic link at or above a name, below the root, is refused: through one, a run from elsewhere
    could have files outside it listed, changed or removed. The root itself may be a link.

    Attributes:
        url: what another process opens: an absolute path, or a URL with its protocol.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        """Connects to the folder at `url`, which need not exist.

        Raises:
            ConfigError: the URL is empty, or its protocol is unknown or not installed.
        """
        text = os.fspath(url)
        if not text:
            raise ConfigError("the path of a run is empty: give a folder or a URL")
        protocol = text.split("://", 1)[0] if "://" in text else ""
        try:
            # A cached listing would hide what other processes publish.
            self._fs, root = fsspec.url_to_fs(text, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            extra = _EXTRAS.get(protocol)
            way_out = (
                f"pip install 'beamrl[{extra}]'" if extra else "use a local path, gs:// or s3://"
            )
            raise ConfigError(f"cannot open {text}: {_line(error)}; {way_out}") from error
        self._root = str(root).rstrip("/") or "/"
        self._local = isinstance(self._fs, LocalFileSystem)
        self.url = self._root if self._local else str(self._fs.unstrip_protocol(self._root))
        # A plug-in for an object store may raise anything, and the user needs the file's name.
        self._failures: type[Exception] = OSError if self._local else Exception

    def url_of(self, name: str) -> str:
        """Returns the path or URL of a name, for other processes and for messages."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url

    def read(self, name: str, limit: int) -> bytes | None:
        """Returns the content of a file, or None when it is absent.

        Raises:
            RunError: it holds more than `limit` bytes, is not a regular file, or cannot be read.
        """
        with self._named("read", name):
            try:
                info: dict[str, Any] = self._fs.info(self._path(name))
                if info["type"] != "file":
                    raise RunError(f"{self.url_of(name)} is not a file")
                if (info["size"] or 0) > limit:
                    raise RunError(f"{self.url_of(name)} is larger than {limit:,} bytes")
                return bytes(self._fs.cat_file(self._path(name)))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def size(self, name: str) -> int | None:
        """Returns the size of a file in bytes, or None when there is no such file."""
        with self._named("read", name):
            try:
                info: dict[str, Any] = self._fs.info(self._path(name))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return int(info["size"] or 0) if info["type"] == "file" else None

    def names(self, folder: str) -> list[str]:
        """Returns the sorted names of what a folder holds; of an absent one, none."""
        path = self._path(folder)
        with self._named("list", folder):
            try:
                found = os.listdir(path) if self._local else self._fs.ls(path, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted({str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in found})

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Gives a name this content, atomically, whether or not it exists.

        Args:
            name: where to write; folders are made as needed.
            data: the whole content.
            durable: sync the file first, so that a power cut leaves the old or the new content,
                not an empty file. Without it the guarantee holds for kills only.
        """
        with self._named("write", name):
            if not self._local:
                self._put(name, data, "overwrite")
                return
            with self._temporary(name, data) as temporary:
                if durable:
                    _sync_all([temporary])
                os.replace(temporary, self._path(name))

    def create(self, name: str, data: bytes, after: Sequence[str] = ()) -> bool:
        """Creates a file with this content unless the name exists; one of several writers wins.

        Args:
            name: what to create; folders are made as needed.
            data: the whole content.
            after: files that the new one speaks of. They and the content are synced before the
                name appears, so that a power cut never leaves the name without them.

        Returns:
            True when this call made the file, False when it was there already.
        """
        folder = name.rpartition("/")[0]
        with self._named("write", name):
            try:
                if not self._local:
                    self._put(name, data, "create")
                    return True
                for other in after:
                    self._refuse_links(other)
                with self._temporary(name, data) as temporary:
                    paths = [self._path(other) for other in after]
                    _sync_all([temporary, *paths, self._path(folder)])
                    created = self._link(temporary, name, data)
                if created:
                    _sync_all([self._path(folder)])
                return created
            except FileExistsError:
                return False

    def append(self, name: str, data: bytes) -> bool:
        """Appends to a file; False, with nothing done, on a store that cannot append."""
        if not self._local:
            return False
        with self._named("write", name), open(self._path(name), "ab") as file:
            file.write(data)
        return True

    def sync(self, folder: str) -> None:
        """Makes the names in a local folder survive a power cut; elsewhere does nothing."""
        if self._local:
            with self._named("write", folder):
                _sync_all([self._path(folder)])

    def check_inside(self, name: str) -> None:
        """Raises RunError when a local name lies behind a symbolic link below the root.

        Every other method checks its names itself. This one is for a folder below the root that
        something else is about to open by its path.
        """
        with self._named("read", name):
            pass

    def has_root(self) -> bool:
        """Returns whether the folder itself is there; elsewhere than on local disks, True."""
        return not self._local or os.path.isdir(self._root)

    def make_folder(self, folder: str) -> None:
        """Makes a folder and its parents."""
        with self._named("make", folder):
            self._fs.makedirs(self._path(folder), exist_ok=True)

    def remove(self, name: str) -> None:
        """Removes a file."""
        with self._named("remove", name), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def remove_folder(self, folder: str) -> None:
        """Removes a folder and all that it holds."""
        with self._named("remove", folder), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(folder), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _link(self, temporary: str, name: str, data: bytes) -> bool:
        try:
            os.link(temporary, self._path(name))
            return True
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        handle = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        _write_and_close(handle, data)
        _sync_all([self._path(name)])
        # Without links a slow writer's half-written file may have been taken for a dead one's,
        # removed, and written again by someone else.
        return self.read(name, len(data)) == data

    @contextlib.contextmanager
    def _temporary(self, name: str, data: bytes) -> Iterator[str]:
        folder, _, last = self._path(name).rpartition("/")
        temporary = f"{folder}/{TEMPORARY_PREFIX}{secrets.token_hex(8)}-{last}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            handle = os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            handle = os.open(temporary, flags, 0o666)
        try:
            _write_and_close(handle, data)
            yield temporary
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _refuse_links(self, name: str) -> None:
        if not self._local:
            return
        path = self._root.rstrip("/")
        for part in name.split("/"):
            path = f"{path}/{part}"
            try:
                mode = os.lstat(path).st_mode if part else 0
            except (FileNotFoundError, NotADirectoryError):
                return
            if stat.S_ISLNK(mode):
                raise RunError(f"{path} is a link; a run directory must hold no links")

    def _put(self, name: str, data: bytes, mode: str) -> None:
        path = self._path(name)
        try:
            self._fs.pipe_file(path, data, mode=mode)
        except FileNotFoundError:
            # Object stores have no folders; others (SFTP, HDFS) want them before a file.
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, data, mode=mode)

    @contextlib.contextmanager
    def _named(self, action: str, name: str) -> Iterator[None]:
        try:
            self._refuse_links(name)
            yield
        except RunError:
            raise
        except self._failures as error:
            raise RunError(f"cannot {action} {self.url_of(name)}: {_line(error)}") from error


def split_url(url: str) -> tuple[str, str]:
    """Splits a path or URL into its folder and its last name, both without a trailing slash."""
    folder, _, name = url.rstrip("/").rpartition("/")
    return folder, name


def _write_and_close(handle: int, data: bytes) -> None:
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
    finally:
        os.close(handle)


def _sync_all(paths: Sequence[str]) -> None:
    # At once: on a busy disk five syncs one after the other took 40 ms, together 16 ms.
    failures: list[OSError] = []

    def sync(own: Sequence[str]) -> None:
        try:
            for path in own:
                _sync(path)
        except OSError as error:
            failures.append(error)

    lanes = [paths[lane::_SYNC_LANES] for lane in range(min(_SYNC_LANES, len(paths)))]
    threads = [threading.Thread(target=sync, args=(lane,)) for lane in lanes[1:]]
    for thread in threads:
        thread.start()
    sync(lanes[0])
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems know no sync of a folder.
        if error.errno not in _NO_FOLDER_SYNC or not os.path.isdir(path):
            raise
    finally:
        os.close(handle)


def _line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
