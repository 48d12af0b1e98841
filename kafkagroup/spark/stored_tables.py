"""Tables that Spark writes, in a folder or in a catalog: whole, or one part after the other.

A part has the rows of one value of a column. A part that is written again replaces the earlier one,
so a writer that is started again after it died may write its parts once more.
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

_FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro")
"""Formats of plain files. While Spark overwrites them, there is no table; the other formats keep
versions of a table."""

_VIEW = "kafkagroup_part"
"""The name of the temporary view from which a part is inserted."""


def _nothing() -> None:
    pass


@attrs.frozen
class Tables:
    """Tables by name: in a folder, or in a catalog."""

    spark: SparkSession
    root: str
    """A path or URL that Spark can write to."""
    format: str = "parquet"
    """A format in which Spark writes files; or "delta" or "iceberg", if the session has it."""
    namespace: str | None = None
    """A namespace of a catalog of the session, such as "lake.kafka", which then has the tables
    instead of `root`."""
    before_write: Callable[[], None] = attrs.field(default=_nothing, kw_only=True, repr=False)
    """Called before each write. If it raises an error, that write is not done."""

    def path(self, name: str) -> str:
        """Return the path of a table below `root`."""
        return f"{self.root.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        """Return whether the table exists."""
        if self.namespace is not None:
            return bool(self.spark.catalog.tableExists(self._qualified_name(name)))
        return exists(self.spark, self.path(name))

    def read(self, name: str) -> DataFrame:
        """Return the table."""
        if self.namespace is not None:
            return self.spark.read.table(self._qualified_name(name))
        return self.spark.read.format(self.format).load(self.path(name))

    @property
    def is_safe(self) -> bool:
        """Whether a table is replaced in one step: if the writer dies, there is the old table or
        the new one."""
        if self.format not in _FILE_FORMATS:
            return True
        return self.namespace is None and can_exchange(self.spark, self.root)

    def replace(self, name: str, rows: DataFrame, part_by: str | None = None) -> None:
        """Replace the whole table; `part_by` is the column whose values have parts of their own.
        `rows` may be computed from the table itself only if `is_safe`.

        A table of files is written to another folder, which then replaces that of the table.
        """
        if not self.is_folder:
            self._write(name, rows, part_by)
            return
        draft = f".{name}.draft"
        self._write(draft, rows, part_by)
        if part_by is not None and not self.parts(draft, part_by):
            # Without rows Spark has written no file, and could not read the columns of the table.
            self._write(f"{draft}/{part_by}=0", rows.limit(0).drop(part_by))
        self.before_write()  # again, because Spark may have written the draft for a long time
        replace_folder(self.spark, self.path(draft), self.path(name))

    def replace_part(self, name: str, rows: DataFrame, column: str, value: int) -> None:
        """Write or replace the part of a table with this value of `column`, which `rows` does not
        have. Creates the table if it does not exist."""
        if self.is_folder:
            draft = f".{name}.draft"
            self._write(draft, rows)
            self.before_write()  # again, because Spark may have written the draft for a long time
            replace_folder(self.spark, self.path(draft), f"{self.path(name)}/{column}={value}")
        elif not self.exists(name):
            self._write(name, rows.withColumn(column, F.lit(value)), column)
        else:
            self.before_write()
            columns = [f"`{other}`" for other in self.read(name).columns if other != column]
            rows.createOrReplaceTempView(_VIEW)
            self.spark.sql(
                f"INSERT OVERWRITE TABLE {self._sql_name(name)} PARTITION ({column} = {value})"
                f" SELECT {', '.join(columns)} FROM {_VIEW}"
            )

    def parts(self, name: str, column: str) -> list[int]:
        """Return the values of `column`, each of which has a part, sorted."""
        if self.is_folder:
            found = names(self.spark, self.path(name))
            return sorted(int(n.partition("=")[2]) for n in found if n.startswith(f"{column}="))
        return sorted(row[0] for row in self.read(name).select(column).distinct().collect())

    def delete_parts(self, name: str, column: str, *, keep: int) -> None:
        """Delete all parts but that with the value `keep`."""
        for value in self.parts(name, column):
            if value == keep:
                continue
            self.before_write()
            if self.is_folder:
                delete(self.spark, f"{self.path(name)}/{column}={value}")
            elif self.format in _FILE_FORMATS:
                self.spark.sql(
                    f"ALTER TABLE {self._sql_name(name)}"
                    f" DROP IF EXISTS PARTITION ({column}={value})"
                )
            else:
                self.spark.sql(f"DELETE FROM {self._sql_name(name)} WHERE {column} = {value}")

    @property
    def is_folder(self) -> bool:
        """Whether a table is a folder of plain files."""
        return self.namespace is None and self.format in _FILE_FORMATS

    def _write(self, name: str, rows: DataFrame, part_by: str | None = None) -> None:
        self.before_write()
        # A later release may have other columns: without this option, Delta refuses them.
        writer = rows.write.format(self.format).mode("overwrite").option("overwriteSchema", True)
        if part_by is not None:
            writer = writer.partitionBy(part_by)
        if self.namespace is not None:
            writer.saveAsTable(self._qualified_name(name))
        else:
            writer.save(self.path(name))

    def _qualified_name(self, name: str) -> str:
        """Return the name of a table in the catalog."""
        return f"{self.namespace}.{name}"

    def _sql_name(self, name: str) -> str:
        """Return how SQL names a table."""
        if self.namespace is not None:
            return self._qualified_name(name)
        return f"{self.format}.`{self.path(name)}`"
