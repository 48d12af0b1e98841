"""Tables that Spark writes, in a folder or in a catalog: whole, or one part after the other.

A part has the rows of one value of a column. A part that is written again takes the place of the
earlier one, so a writer that died in the middle repeats what it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
from pyspark.sql import functions as F

from kafkagroup.spark.files import can_exchange, delete, exists, names, replace_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Tables"]

_FILES = ("parquet", "orc", "json", "csv", "text", "avro")
"""Formats of plain files. While they are overwritten there is no table; other formats have versions
of a table."""

_VIEW = "kafkagroup_part"


def _nothing() -> None:
    pass


@attrs.frozen
class Tables:
    """Tables by name: in a folder, or in a catalog."""

    spark: SparkSession
    root: str
    """A path or URL that Spark can write to."""
    format: str = "parquet"
    """Also "delta" or "iceberg", if the session has it."""
    namespace: str | None = None
    """A namespace of a catalog of the session, such as "lake.kafka", which then has the tables
    instead of `root`."""
    before_write: Callable[[], None] = attrs.field(default=_nothing, kw_only=True, repr=False)
    """Called before each write. May raise: then nothing is written."""

    def path(self, name: str) -> str:
        """Return the path of a table below `root`."""
        return f"{self.root.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        """Whether the table exists."""
        if self.namespace is not None:
            return bool(self.spark.catalog.tableExists(self._named(name)))
        return exists(self.spark, self.path(name))

    def read(self, name: str) -> DataFrame:
        """Return the table."""
        if self.namespace is not None:
            return self.spark.read.table(self._named(name))
        return self.spark.read.format(self.format).load(self.path(name))

    @property
    def is_safe(self) -> bool:
        """Whether a table is replaced in one step: interrupted, there is the old or the new one."""
        if self.format not in _FILES:
            return True
        return self.namespace is None and can_exchange(self.spark, self.root)

    def replace(self, name: str, rows: DataFrame, part_by: str | None = None) -> None:
        """Replace the whole table; `part_by` is the column whose values have parts of their own.
        `rows` may be read from the table only if `is_safe`.

        A table of files is written beside it, and then takes its place.
        """
        if not self.is_folder:
            self._write(name, rows, part_by)
            return
        draft = f".{name}.draft"
        self._write(draft, rows, part_by)
        if part_by is not None and not self.parts(draft, part_by):
            # Spark has written no file, and could not read the columns of the table.
            self._write(f"{draft}/{part_by}=0", rows.limit(0).drop(part_by))
        self.before_write()
        replace_folder(self.spark, self.path(draft), self.path(name))

    def replace_part(self, name: str, rows: DataFrame, column: str, value: int) -> None:
        """Write the part of a table that has this value of a column, or replace it. `rows` have no
        such column. Creates the table."""
        if self.is_folder:
            draft = f".{name}.draft"
            self._write(draft, rows)
            self.before_write()
            replace_folder(self.spark, self.path(draft), f"{self.path(name)}/{column}={value}")
        elif not self.exists(name):
            self._write(name, rows.withColumn(column, F.lit(value)), column)
        else:
            self.before_write()
            columns = [f"`{other}`" for other in self.read(name).columns if other != column]
            rows.createOrReplaceTempView(_VIEW)
            self.spark.sql(
                f"INSERT OVERWRITE TABLE {self._in_sql(name)} PARTITION ({column} = {value})"
                f" SELECT {', '.join(columns)} FROM {_VIEW}"
            )

    def parts(self, name: str, column: str) -> list[int]:
        """Return the values of the column that have a part of their own, sorted."""
        if self.is_folder:
            found = names(self.spark, self.path(name))
            return sorted(int(n.partition("=")[2]) for n in found if n.startswith(f"{column}="))
        return sorted(row[0] for row in self.read(name).select(column).distinct().collect())

    def delete_parts(self, name: str, column: str, *, keep: int) -> None:
        """Delete all parts but one."""
        for value in self.parts(name, column):
            if value == keep:
                continue
            self.before_write()
            if self.is_folder:
                delete(self.spark, f"{self.path(name)}/{column}={value}")
            elif self.format in _FILES:
                self.spark.sql(
                    f"ALTER TABLE {self._in_sql(name)} DROP IF EXISTS PARTITION ({column}={value})"
                )
            else:
                self.spark.sql(f"DELETE FROM {self._in_sql(name)} WHERE {column} = {value}")

    @property
    def is_folder(self) -> bool:
        """Whether a table is a folder of plain files."""
        return self.namespace is None and self.format in _FILES

    def _write(self, name: str, rows: DataFrame, part_by: str | None = None) -> None:
        self.before_write()
        # A later release may have other columns: without this option, Delta refuses them.
        writer = rows.write.format(self.format).mode("overwrite").option("overwriteSchema", True)
        if part_by is not None:
            writer = writer.partitionBy(part_by)
        if self.namespace is not None:
            writer.saveAsTable(self._named(name))
        else:
            writer.save(self.path(name))

    def _named(self, name: str) -> str:
        return f"{self.namespace}.{name}"

    def _in_sql(self, name: str) -> str:
        if self.namespace is not None:
            return self._named(name)
        return f"{self.format}.`{self.path(name)}`"
