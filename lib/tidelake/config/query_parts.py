"""Cut the SQL of a query into parts: its condition, its keys, its aggregates and its columns.

A part is a text of the statement. Spark gets these texts, with a name in place of each aggregate,
and never a statement that another parser has written.

Refused is what a batch cannot compute again for its own windows alone, and what depends on the
order of rows: a retry, a rebuild and ``verify`` must give the same values. What the columns of the
table show is checked in :mod:`.queries`; with it the file would exceed 500 lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.dialects import Spark
from sqlglot.tokenizer_core import Token

from tidelake.config.expressions import (
    AGGREGATES,
    NO_PARENTHESES,
    UNREADABLE,
    columns_in,
    syntax_problem,
)
from tidelake.config.gold_definitions import HoppingWindow, TumblingWindow
from tidelake.config.model import Problems
from tidelake.names import is_column_name

# The column that is cut into windows, by the layer of the table that is read.
STARTS = {"gold": "window_start", "silver": "event_time"}
# The units of date_trunc, with the length of the longest such period.
UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
    "month": timedelta(days=31),
    "quarter": timedelta(days=92),
    "year": timedelta(days=366),
}
_DAY, _MONDAY = timedelta(days=1), timedelta(days=4)
# Aggregates whose result does not depend on the order of rows, by their names in SQL.
_FUNCTIONS = {
    **{name: name for name in ("count", "count_if", "sum", "avg", "min", "max")},
    **{"mean": "avg", "try_sum": "sum", "try_avg": "avg"},
}
_INSTEAD = {
    "approx_count_distinct": "count(DISTINCT x) is exact here",
    **dict.fromkeys(("bool_and", "every"), "write min(x)"),
    **dict.fromkeys(("bool_or", "any", "some"), "write max(x)"),
    **dict.fromkeys(("max_by", "last", "last_value"), "write max(struct(at, x)).x"),
    **dict.fromkeys(("min_by", "first", "first_value"), "write min(struct(at, x)).x"),
}
_CLAUSES = ("SELECT", "FROM", "WHERE", "GROUP_BY", "HAVING")
_CLAUSE_KEYS = ("expressions", "from_", "where", "group", "having")
_WHY_REFUSED = {
    "with_": "WITH; a query reads one table",
    "joins": "a second table; a query reads one table",
    "laterals": "LATERAL; a query reads one table",
    "distinct": "SELECT DISTINCT; the keys of GROUP BY are distinct already",
    "order": "ORDER BY; a table has no order, so sort where it is read",
    "limit": "LIMIT; a batch computes some windows only, so limit where it is read",
    "offset": "OFFSET; a batch computes some windows only, so limit where it is read",
    "qualify": "QUALIFY; a batch has the rows of some windows only, so rank where it is read",
}
_OPENING, _CLOSING = ("L_PAREN", "L_BRACKET", "L_BRACE"), ("R_PAREN", "R_BRACKET", "R_BRACE")


class QueryKey(NamedTuple):
    """A grouped column: its name, its SQL, and the name that other parts know it by.

    Attributes:
        unit: The unit by which it cuts the start, "" for ``window_start`` itself; None if it is no
            window.
        by_name: Whether GROUP BY names the column and not its expression.
    """

    name: str
    sql: str
    internal: str
    unit: str | None
    by_name: bool


class Call(NamedTuple):
    """An aggregate and its argument, ``*`` for rows; other parts know it by ``internal``."""

    function: str
    argument: str
    distinct: bool
    internal: str


class QueryColumn(NamedTuple):
    """A column: its name, its SQL, and the same with names in place of aggregates and keys."""

    name: str
    sql: str
    computed: str


class QueryParts(NamedTuple):
    """The parts of a query; ``having`` is written as ``QueryColumn.computed``.

    Attributes:
        source: The logical name of the table that it reads.
        start: The column of that table which is cut into windows.
        columns: All columns in order, the keys too.
        text: The statement without comments and with single spaces.
    """

    source: str
    start: str
    where: str | None
    keys: tuple[QueryKey, ...]
    calls: tuple[Call, ...]
    columns: tuple[QueryColumn, ...]
    having: str | None
    text: str

    @property
    def window(self) -> QueryKey:
        """The key that is a window: of several the one with the shortest period."""
        windows = [key for key in self.keys if key.unit is not None]
        return min(windows, key=lambda key: UNITS.get(key.unit or "", timedelta(0)))

    @property
    def period(self) -> timedelta:
        """The longest period that the start is cut into; 0 if it is a key itself."""
        return UNITS.get(self.window.unit or "", timedelta(0))

    def lasts(self, window: TumblingWindow | HoppingWindow | None) -> timedelta:
        """Return the time span of events, from its window start, on which a row depends.

        ``window`` is that of the table that is read, None for silver.
        """
        if window is None:
            return self.period
        step = window.slide if isinstance(window, HoppingWindow) else window.size
        period = self.period
        if not period:
            return window.size
        # Periods begin at a multiple of their length or of a day; weeks on Mondays.
        begins = _MONDAY if self.window.unit == "week" else min(period, _DAY)
        is_aligned = not period % step and not begins % step
        last = period - step + window.offset if is_aligned else period
        return last + window.size

    def used(self) -> Iterator[tuple[str, str]]:
        """Yield each part that is SQL over the table that is read, with its place in words."""
        if self.where is not None:
            yield "WHERE", self.where
        for key in self.keys:
            yield key.name, key.sql
        for call in self.calls:
            if call.argument != "*":
                yield f"{call.function}({call.argument})", call.argument


@lru_cache(maxsize=64)
def parse_query(sql: str) -> QueryParts:
    """Cut a statement into its parts.

    Raises:
        Problems: It cannot be computed for single windows, or is not reproducible.
    """
    sql = sql.strip().rstrip(";").rstrip()
    tree = _select(sql)
    if problems := list(dict.fromkeys([*_clause_problems(tree), *_node_problems(tree)])):
        raise Problems(problems)
    found = _StatementReader(sql, tree)
    if found.problems:
        raise Problems(dict.fromkeys(found.problems))
    return found.parts()


def source_of(sql: object) -> str:
    """Return the logical name of the table that a statement reads; "" if it cannot be read."""
    try:
        table = _select(str(sql).strip().rstrip(";")).args["from_"].this
    except Problems:
        return ""
    return f"{_layer_of(table)}.{table.name.lower()}"


def _select(sql: str) -> exp.Select:
    try:
        statements = sqlglot.parse(sql, dialect="spark")
    except UNREADABLE as error:
        raise Problems([syntax_problem(sql, error, "SELECT")]) from None
    tree = statements[0] if statements else None
    if len(statements) != 1 or not isinstance(tree, exp.Select) or not tree.args.get("from_"):
        form = "SELECT … FROM gold.table GROUP BY …"
        raise Problems([f"is not one SELECT over a table; write {form}"])
    return tree


def _clause_problems(tree: exp.Select) -> Iterator[str]:
    """Find clauses that no query may have, and another source than one table."""
    for key, value in tree.args.items():
        if value and key not in _CLAUSE_KEYS:
            known = f"{key.strip('_').upper().replace('_', ' ')}, which a query cannot have"
            yield f"contains {_WHY_REFUSED.get(key, known)}"
    table = tree.args["from_"].this
    yield from _table_problems(table)
    group = tree.args.get("group")
    if group is None:
        yield f"has no GROUP BY; group by the window: {_windows_of(_layer_of(table))}"
        return
    sets = (exp.GroupingSets, exp.Cube, exp.Rollup)
    more = any(value for key, value in group.args.items() if key not in ("expressions", "all"))
    if more or any(isinstance(one, sets) for one in group.expressions):
        yield "groups by sets of keys (ROLLUP, CUBE, GROUPING SETS); name one set of keys"


def _table_problems(table: exp.Expr) -> Iterator[str]:
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        yield "reads something other than a table; write FROM gold.table"
        return
    if table.alias:
        yield f"gives its table a second name, {table.alias}; remove it"
    if table.catalog or _layer_of(table) not in STARTS:
        written = ".".join(part.name for part in table.parts)
        yield f"reads {written}; a query reads gold or the silver of its own pipeline"
    if any(value for key, value in table.args.items() if key not in ("this", "db", "alias")):
        yield "reads a version, a sample or a pivot of its table; write the name alone"


def _layer_of(table: exp.Expr) -> str:
    """Return the layer that a table's name says; a name alone is one of gold."""
    return table.db.lower() or "gold" if isinstance(table, exp.Table) else "gold"


def _windows_of(layer: str) -> str:
    """Return how to write the window of a query, by the layer of the table that it reads."""
    start = STARTS.get(layer, STARTS["gold"])
    itself = "" if layer == "silver" else f"{start} itself, or "
    return f"{itself}date_trunc('hour', {start}) with one of {', '.join(UNITS)}"


def _node_problems(tree: exp.Select) -> Iterator[str]:
    """Find expressions that no query may have."""
    for node in tree.walk():
        if isinstance(node, exp.Query) and node is not tree and not isinstance(node, exp.Table):
            yield "contains a subquery; a query reads one table, row by row"
        elif isinstance(node, exp.Window):
            yield (
                "contains a window function (OVER); a batch has the rows of some windows only, so "
                "rank where the table is read"
            )
        elif isinstance(node, exp.Filter):
            yield "contains FILTER; write sum(CASE WHEN condition THEN x END)"
        elif isinstance(node, exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
            yield "contains an aggregate with an order or a treatment of nulls; remove that"


class _StatementReader:
    """Reads the parts of a parsed statement from its text, and collects problems."""

    def __init__(self, sql: str, tree: exp.Select) -> None:
        self.problems: list[str] = []
        self._sql, self._tree = sql, tree
        self._layer = _layer_of(tree.args["from_"].this)
        self._calls: dict[tuple[str, str, bool], Call] = {}
        tokens = list(Spark().tokenize(sql))
        self._text = " ".join(self._written([token]) for token in tokens)
        self._clauses = self._cut(tokens)
        self._columns: list[QueryColumn] = []
        self._keys: dict[int, QueryKey] = {}
        # The keys that are calls of a function as a whole, which columns may repeat.
        self._whole_calls: dict[int, tuple[tuple[str, str], ...]] = {}
        self._having: str | None = None
        items = _split(self._clauses.get("SELECT", []))
        in_order = [one for one in _CLAUSES if one in self._clauses]
        if list(self._clauses) == in_order and len(items) == len(tree.expressions):
            self._read(items)
        else:
            order = "SELECT, FROM, WHERE, GROUP BY, HAVING"
            self.problems.append(f"is not written in the order {order}")

    def parts(self) -> QueryParts:
        """Return the parts; there must be no problem."""
        where = self._clauses.get("WHERE")
        return QueryParts(
            source=source_of(self._sql),
            start=STARTS[self._layer],
            where=self._written(where) if where else None,
            keys=tuple(self._keys.values()),
            calls=tuple(self._calls.values()),
            columns=tuple(self._columns),
            having=self._having,
            text=self._text,
        )

    def _cut(self, tokens: Sequence[Token]) -> dict[str, list[Token]]:
        """Return the tokens of each clause, without its keyword."""
        found: dict[str, list[Token]] = {}
        current: list[Token] = []
        depth, before = 0, ""
        for token in tokens:
            kind = token.token_type.name
            depth += (kind in _OPENING) - (kind in _CLOSING)
            # IS DISTINCT FROM is no clause.
            if depth == 0 and kind in _CLAUSES and (kind, before) != ("FROM", "DISTINCT"):
                current = found.setdefault(kind, [])
            else:
                current.append(token)
            before = kind
        return found

    def _written(self, tokens: Sequence[Token]) -> str:
        return self._sql[tokens[0].start : tokens[-1].end + 1]

    def _read(self, items: Sequence[list[Token]]) -> None:
        named: list[tuple[str, list[Token], exp.Expr]] = []
        taken: set[str] = set()
        for node, written in zip(self._tree.expressions, items, strict=True):
            name, tokens = self._name_of(node, written)
            if name and not is_column_name(name):
                self.problems.append(
                    f"'{name}' is not a valid column name; use letters, digits and underscores, a "
                    "letter first"
                )
            if name and name.lower() in taken:
                self.problems.append(f"has two columns {name} (names are case-insensitive)")
            taken.add(name.lower())
            named.append((name, tokens, node.unalias()))
        self._group(named)
        for number, (name, tokens, _) in enumerate(named):
            key = self._keys.get(number)
            computed = key.internal if key else self._computed(name, tokens)
            self._columns.append(QueryColumn(name, self._written(tokens), computed))
        if having := self._clauses.get("HAVING"):
            self._having = self._computed("HAVING", having)

    def _name_of(self, node: exp.Expr, tokens: list[Token]) -> tuple[str, list[Token]]:
        """Return a column's name, and its tokens without the alias."""
        if isinstance(node, exp.Alias):
            rest = tokens[:-1]
            is_as = len(rest) > 1 and rest[-1].token_type.name == "ALIAS"
            return node.alias, rest[:-1] if is_as else rest
        if isinstance(node, exp.Column) and len(node.parts) == 1:
            return node.name, tokens
        self.problems.append(f"{self._written(tokens)} has no name; add AS and a name")
        return "", tokens

    def _group(self, named: Sequence[tuple[str, list[Token], exp.Expr]]) -> None:
        """Find the columns that are keys."""
        group = self._tree.args["group"]
        if group.args.get("all"):
            for number, (_, tokens, _) in enumerate(named):
                if not any(_is_aggregate(tokens, at) for at in range(len(tokens))):
                    self._add_key(number, named, by_name=False)
        for node, tokens in zip(group.expressions, _split(self._clauses["GROUP_BY"]), strict=False):
            bare = _bare(node)
            same = [n for n, (_, _, one) in enumerate(named) if _bare(one) == bare]
            if isinstance(node, exp.Literal) and node.name.isdigit():
                same = [int(node.name) - 1] if 0 < int(node.name) <= len(named) else []
            by_name = not same
            if by_name and isinstance(node, exp.Column):
                same = [n for n, one in enumerate(named) if one[0].lower() == node.name.lower()]
            if same:
                self._add_key(same[0], named, by_name=by_name)
            else:
                self.problems.append(
                    f"groups by {self._written(tokens)}, which is none of its columns; select it, "
                    "because a row is found by its keys"
                )
        if not any(key.unit is not None for key in self._keys.values()):
            self.problems.append(f"groups by no window; group by {_windows_of(self._layer)}")

    def _add_key(
        self, number: int, named: Sequence[tuple[str, list[Token], exp.Expr]], *, by_name: bool
    ) -> None:
        name, tokens, node = named[number]
        if any(_is_aggregate(tokens, at) for at in range(len(tokens))):
            self.problems.append(f"groups by {name}, which is an aggregate")
            return
        internal, unit = f"_key_{number}", _unit_of(tokens, STARTS[self._layer])
        if isinstance(node, exp.Column) and len(node.parts) == 1:
            internal = node.name.lower()
        elif _opens(tokens, 1) and _closing(tokens, 1) == len(tokens) - 1:
            self._whole_calls[number] = _words(tokens)
        self._keys[number] = QueryKey(name, self._written(tokens), internal, unit, by_name)

    def _computed(self, name: str, tokens: list[Token]) -> str:
        """Put names in place of aggregates and of keys that are calls; report other columns."""
        pieces, kept, at = "", tokens[0].start, 0
        while at < len(tokens):
            end, put = self._put_for(tokens, at)
            if put:
                pieces += self._sql[kept : tokens[at].start] + put
                kept = tokens[end].end + 1
            at = end + 1
        computed = pieces + self._sql[kept : tokens[-1].end + 1]
        known = {key.internal for key in self._keys.values()}
        known |= {call.internal for call in self._calls.values()}
        for used in sorted(columns_in(computed) - known - NO_PARENTHESES):
            self.problems.append(
                f"{name} uses {used} outside of an aggregate, and GROUP BY does not name it"
            )
        return computed

    def _put_for(self, tokens: Sequence[Token], at: int) -> tuple[int, str]:
        """Return where a part that begins here ends, and the name in its place; "" to keep it."""
        if _is_aggregate(tokens, at):
            end = _closing(tokens, at + 1)
            return end, self._call(tokens[at].text.lower(), tokens[at + 2 : end])
        for number, words in self._whole_calls.items():
            end = at + len(words)
            if _words(tokens[at:end]) == words:
                return end - 1, self._keys[number].internal
        return at, ""

    def _call(self, name: str, tokens: Sequence[Token]) -> str:
        """Return the name of an aggregate."""
        function = _FUNCTIONS.get(name)
        distinct = bool(tokens) and tokens[0].token_type.name == "DISTINCT"
        arguments = _split(tokens[1:] if distinct else tokens)
        argument = self._written(arguments[0]) if arguments and arguments[0] else ""
        if function is None:
            instead = _INSTEAD.get(name, f"known are {', '.join(sorted(_FUNCTIONS))}")
            self.problems.append(
                f"calls {name}, which a query cannot compute in the same way again; {instead}"
            )
        elif len(arguments) != 1 or not argument or (argument == "*") > (function == "count"):
            self.problems.append(f"calls {name} with other than one argument")
        elif distinct and function != "count":
            self.problems.append(f"calls {name}(DISTINCT …); only count has DISTINCT")
        found = (function or name, argument, distinct)
        made = Call(*found, f"_agg_{len(self._calls)}")
        return self._calls.setdefault(found, made).internal


def _split(tokens: Sequence[Token]) -> list[list[Token]]:
    """Split at the commas that are in no parentheses; nothing for no tokens."""
    found: list[list[Token]] = [[]] if tokens else []
    depth = 0
    for token in tokens:
        kind = token.token_type.name
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if depth == 0 and kind == "COMMA":
            found.append([])
        else:
            found[-1].append(token)
    return found


def _is_aggregate(tokens: Sequence[Token], at: int) -> bool:
    """Return whether a call of an aggregate begins here; LIKE ANY is none."""
    is_pattern = at > 0 and tokens[at - 1].text.lower() in ("like", "ilike")
    return _opens(tokens, at + 1) and tokens[at].text.lower() in AGGREGATES and not is_pattern


def _opens(tokens: Sequence[Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].token_type.name == "L_PAREN"


def _closing(tokens: Sequence[Token], at: int) -> int:
    """Return the index of the parenthesis that closes the one at an index."""
    depth = 0
    for number in range(at, len(tokens)):
        kind = tokens[number].token_type.name
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if depth == 0:
            return number
    return len(tokens) - 1


def _words(tokens: Sequence[Token]) -> tuple[tuple[str, str], ...]:
    """Return tokens in a form that is equal for equal SQL."""
    kinds = ((token.token_type.name, token.text) for token in tokens)
    return tuple((kind, text if kind == "STRING" else text.lower()) for kind, text in kinds)


def _unit_of(tokens: Sequence[Token], start: str) -> str | None:
    """Return the unit by which an expression cuts the start, "" for none; None if it is another."""
    words = [text for _, text in _words(tokens)]
    if words == [start]:
        # An event's time is no window.
        return "" if start == STARTS["gold"] else None
    unit = words[2] if words[:1] == ["date_trunc"] and len(words) > 2 else ""
    is_cut = words == ["date_trunc", "(", unit, ",", start, ")"]
    return unit.lower() if is_cut and unit.lower() in UNITS else None


def _bare(node: exp.Expr) -> exp.Expr:
    """Return an expression with its names in lower case and without quotes."""
    copy = node.copy()
    for name in copy.find_all(exp.Identifier):
        name.set("this", name.name.lower())
        name.set("quoted", False)
    return copy
