"""Files wherever Spark can write them, by Hadoop's file systems in the driver's JVM.

A session of Spark Connect has no JVM. There files can only be read, as tables of Spark.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from kafkagroup.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "can_exchange",
    "check_has_jvm",
    "delete",
    "exists",
    "is_connect",
    "last_number",
    "names",
    "read_text",
    "replace_folder",
    "write_numbered",
    "write_text",
]


def check_has_jvm(spark: SparkSession, what: str) -> None:
    """Check that this is no session of Spark Connect. `what`: the operation that needs the JVM, as
    the subject of the error message. Raises: ConfigurationError."""
    if is_connect(spark):
        raise ConfigurationError(
            f"{what} needs the JVM of the Spark driver, which a Spark Connect session does not"
            " have; use a classic session: SparkSession.builder.master(...), without .remote(...),"
            " SPARK_REMOTE and spark.api.mode=connect"
        )


def exists(spark: SparkSession, name: str) -> bool:
    """Return whether there is a file or folder of this name."""
    files, path = _file_system(spark, name)
    return bool(files.exists(path))


def last_number(spark: SparkSession, folder: str) -> int | None:
    """Return the highest number that is the name of a file in the folder; None if there is none."""
    return max((int(name) for name in names(spark, folder) if name.isdecimal()), default=None)


def names(spark: SparkSession, folder: str) -> list[str]:
    """Return the names of the files and folders in a folder; none if there is no such folder. In a
    session of Spark Connect, the result has only the files."""
    if is_connect(spark):
        try:
            found = spark.read.format("binaryFile").load(folder).select("path").collect()
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return []
        return [row.path.rpartition("/")[2] for row in found]
    files, path = _file_system(spark, folder)
    if not files.exists(path):
        return []
    return [status.getPath().getName() for status in files.listStatus(path)]


def read_text(spark: SparkSession, file: str) -> str:
    """Return the content of a file."""
    if is_connect(spark):
        (row,) = spark.read.format("binaryFile").load(file).select("content").collect()
        return bytes(row.content).decode("utf-8")
    files, path = _file_system(spark, file)
    stream = files.open(path)
    try:
        return str(_jvm(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, file: str, text: str) -> None:
    """Write a file, or replace it. Readers never see a part of the file. While it is replaced, no
    file of this name exists for a moment."""
    files, path = _file_system(spark, file)
    draft = path.suffix(".draft")
    stream = files.create(draft, True)  # True: overwrite it
    try:
        stream.write(bytearray(text, "utf-8"))
    finally:
        stream.close()
    files.delete(path, False)  # False: no folder
    _rename(files, draft, path)


def write_numbered(spark: SparkSession, folder: str, number: int, text: str) -> None:
    """Write the file whose name is `number`, and then delete the files with lower numbers. From the
    write on, `last_number` returns `number`."""
    write_text(spark, f"{folder}/{number}", text)
    for name in names(spark, folder):
        if name.isdecimal() and int(name) < number:
            delete(spark, f"{folder}/{name}")


def delete(spark: SparkSession, name: str) -> None:
    """Delete a file, or a folder with its content, if it exists."""
    files, path = _file_system(spark, name)
    files.delete(path, True)


def replace_folder(spark: SparkSession, draft: str, folder: str) -> None:
    """Move the folder `draft` to the place of `folder`. Readers never see a part of it there.

    On a local disk of Linux, this is one step. Elsewhere there is no `folder` for a moment, or
    until the next call if this one is interrupted. The replaced folder stays beside it, hidden,
    until the next call: a program may be listing it.
    """
    files, path = _file_system(spark, folder)
    new = _file_system(spark, draft)[1]
    parent, _, name = folder.rpartition("/")
    old = _file_system(spark, f"{parent}/.{name}.old")[1]
    files.delete(old, True)
    if not files.exists(path):
        files.mkdirs(path.getParent())
        _rename(files, new, path)
    elif _is_local(files) and _exchange(new.toUri().getPath(), path.toUri().getPath()):
        _rename(files, new, old)  # after the exchange, the replaced folder is at `new`
    else:
        _rename(files, path, old)
        _rename(files, new, path)


def can_exchange(spark: SparkSession, folder: str) -> bool:
    """Return whether `replace_folder` replaces folders within `folder` in one step."""
    files, path = _file_system(spark, folder)
    if not _is_local(files):
        return False
    files.mkdirs(path)
    parent = path.toUri().getPath()
    with TemporaryDirectory(dir=parent) as one, TemporaryDirectory(dir=parent) as other:
        return _exchange(one, other)


def _is_local(files: Any) -> bool:
    return bool(files.getUri().getScheme() == "file")


# Constants of Linux's headers, which Python does not have.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def _exchange(one: str, other: str) -> bool:
    """Exchange two folders in one step, by renameat2 of Linux. Return False if the system or the
    file system does not support it."""
    if sys.platform == "win32":
        return False  # `CDLL` does not accept None there
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    if (code := ctypes.get_errno()) in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), one, None, other)


def _rename(files: Any, source: Any, target: Any) -> None:
    if not files.rename(source, target):
        raise OSError(f"{source} cannot be renamed to {target}")


def _file_system(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Return Hadoop's file system for a name, and the path in it."""
    check_has_jvm(spark, f"access to the file or folder {name}")
    jvm = _jvm(spark)
    path = jvm.org.apache.hadoop.fs.Path(name)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect."""
    # The class cannot be imported without gRPC, which only Spark Connect needs.
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def _jvm(spark: SparkSession) -> Any:
    """Return the driver's JVM, for which PySpark has only a private attribute."""
    return spark.sparkContext._jvm
