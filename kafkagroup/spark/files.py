"""Files wherever Spark can write them, by Hadoop's file systems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["exists", "last_number", "read_text", "replace_folder", "write_text"]


def exists(spark: SparkSession, name: str) -> bool:
    """Whether there is such a file or folder."""
    files, path = _file_system(spark, name)
    return bool(files.exists(path))


def last_number(spark: SparkSession, folder: str) -> int | None:
    """Return the highest number that is the name of a file; None if there is none."""
    files, path = _file_system(spark, folder)
    if not files.exists(path):
        return None
    names = (status.getPath().getName() for status in files.listStatus(path))
    return max((int(name) for name in names if name.isdecimal()), default=None)


def read_text(spark: SparkSession, file: str) -> str:
    """Return the content of a file."""
    files, path = _file_system(spark, file)
    stream = files.open(path)
    try:
        return str(_jvm(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, file: str, text: str) -> None:
    """Write a file, or replace it. It appears whole, or not at all."""
    files, path = _file_system(spark, file)
    draft = path.suffix(".draft")
    stream = files.create(draft, True)
    try:
        stream.write(bytearray(text, "utf-8"))
    finally:
        stream.close()
    files.delete(path, False)
    _rename(files, draft, path)


def replace_folder(spark: SparkSession, draft: str, folder: str) -> None:
    """Put the folder `draft` in the place of `folder`. If that is interrupted, there is one of the
    two, or none; `folder` never has a part."""
    files, path = _file_system(spark, folder)
    old = path.suffix(".old")
    files.delete(old, True)
    if files.exists(path):
        _rename(files, path, old)
    _rename(files, _file_system(spark, draft)[1], path)
    files.delete(old, True)


def _rename(files: Any, source: Any, target: Any) -> None:
    if not files.rename(source, target):
        raise OSError(f"{source} cannot be renamed to {target}")


def _file_system(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Return Hadoop's file system for a name, and the path in it."""
    jvm = _jvm(spark)
    path = jvm.org.apache.hadoop.fs.Path(name)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm
