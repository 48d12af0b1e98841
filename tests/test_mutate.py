"""Which changes the tool for mutation tests makes, and whose tests it runs for each."""

from __future__ import annotations

import ast
import threading
from textwrap import dedent
from typing import Any

from line_hits import traced
from mutate import mutants

SOURCE = dedent(
    """\
    def limit(values, most=3):
        if not values:
            return 0
        return min(
            len(values),
            most + 1,
        )
    """
)


def test_a_change_belongs_to_the_lines_from_the_start_of_its_statement() -> None:
    """A call that spans lines, or a tuple of constants, may run as its first line only."""
    found = [(str(mutant), [*mutant.lines]) for mutant in mutants(ast.parse(SOURCE))]
    assert found == [
        ("2 limit: if not values:  ->  if not not values:", [2, 3]),
        ("2 limit: not values  ->  values", [2]),
        ("3 limit: 0  ->  1", [3]),
        ("4 limit: return min(len(values), most + 1)  ->  return None", [4, 5, 6, 7]),
        ("4 limit: min(len(values), most + 1)  ->  max(len(values), most + 1)", [4, 5, 6, 7]),
        ("4 limit: min(len(values), most + 1)  ->  len(values)", [4, 5, 6, 7]),
        ("4 limit: min(len(values), most + 1)  ->  most + 1", [4, 5, 6, 7]),
        ("6 limit: most + 1  ->  most - 1", [4, 5, 6]),
        ("6 limit: 1  ->  2", [4, 5, 6]),
    ]


def test_the_lines_of_a_file_are_recorded_in_each_thread() -> None:
    here: dict[str, Any] = {}
    elsewhere: dict[str, Any] = {}
    exec(compile(SOURCE, "limit.py", "exec"), here)
    exec(compile(SOURCE, "other.py", "exec"), elsewhere)
    with traced(["limit.py"]) as hits:
        assert (here["limit"]([1]), elsewhere["limit"]([1])) == (1, 1)
        in_loop = {file: {*lines} for file, lines in hits.items()}
        thread = threading.Thread(target=here["limit"], args=([],))
        thread.start()
        thread.join()
    here["limit"]([1])
    assert in_loop == {"limit.py": {2, 4, 5, 6}}
    assert hits == {"limit.py": {2, 3, 4, 5, 6}}
