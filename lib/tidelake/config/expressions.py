"""Check SQL expressions without Spark, and infer their columns and types.

Spark reports most of these problems too, but one at a time and after a minute. It also accepts
nondeterministic functions, which make the retry of a batch differ from the first attempt.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate, pairwise

import sqlglot
from sqlglot import exp
from sqlglot.dialects import Spark
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError

from tidelake.config.inference import field_problems, kind_of, operands_of_a_type
from tidelake.config.literals import literal_problems, may_overflow
from tidelake.config.model import suggestion, unknown

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIME_ZONE = r"\s+\S+|[A-Z]{1,4}(?:[+-][0-9:]+)?|[+-][0-9:]+|[A-Za-z]+/\S+"
# Constants that Spark casts to the time of the query where a date or a timestamp is expected.
_TIME_OF_QUERY = re.compile(rf"(?i:now|today|tomorrow|yesterday)(?:{_TIME_ZONE})?")
# A text that Spark casts to a timestamp of the current day: "12:30", "T12".
DATELESS = "^[^0-9A-Za-z+-]*(T[0-9]|[0-9]{1,2}:)"
_TO_TIMESTAMP = ("to_timestamp_ltz", "to_timestamp_ntz", "try_to_timestamp")
_TO_TIME = (exp.Cast, exp.TryCast, exp.TsOrDsToDate, exp.StrToTime, exp.StrToDate)
_TIME_TYPES = exp.DataType.TEMPORAL_TYPES
_TIMESTAMPS = tuple(kind for kind in _TIME_TYPES if kind.name.startswith(("TIMESTAMP", "DATETIME")))
_PATTERNS = (exp.Like, exp.ILike, exp.RegexpLike, exp.RegexpILike, exp.SimilarTo)
_CONCATENATIONS = (exp.Concat, exp.ConcatWs, exp.DPipe)
# Expressions whose operands Spark casts to a common type.
_COMMON_TYPE = (
    *(exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.In, exp.Nullif),
    *(exp.Case, exp.If, exp.Coalesce, exp.Nvl2, exp.DecodeCase),
)
_ORDERED = (exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.Greatest, exp.Least)
_UNSUPPORTED: tuple[tuple[type[exp.Expr] | tuple[type[exp.Expr], ...], str], ...] = (
    (exp.Window, "contains a window function (OVER); an expression can use only its own row"),
    (exp.Star, "contains *; name the columns"),
    (exp.Distinct, "contains DISTINCT; only an aggregate supports it (approx_count_distinct)"),
    ((exp.Placeholder, exp.Parameter), "contains a parameter marker; parameters are not supported"),
)
DIALECT = "databricks"
# What the parser raises; a ValueError or a LookupError on some calls without arguments, such as
# `date_trunc()`.
UNREADABLE = (SqlglotError, ValueError, LookupError, RecursionError)

# Without a handler Python would print the parser's warnings, which findings report, on stderr.
logging.getLogger("sqlglot").addHandler(logging.NullHandler())

Types = Mapping[str, str | None]
# Types that Spark accepts as a condition. A text that is none fails on its row alone.
CONDITIONS = ("BOOLEAN", "STRING")


def expression_problems(sql: str, columns: Collection[str] | None) -> list[str]:
    """List the problems of a Spark SQL expression over one row.

    ``columns`` are the names that it may use (case-insensitive), or a mapping of names to types.
    None skips the check of columns.
    """
    if not sql.strip():
        return ["is empty; write one SQL expression"]
    try:
        statements = sqlglot.parse(f"SELECT ({as_operand(sql)})", dialect="spark")
    except UNREADABLE as error:
        return [syntax_problem(sql, error, "SQL expression")]
    root = _only_expression(statements)
    if isinstance(root, str):
        return [root]
    if _closes_too_early(sql):
        return ["is not valid SQL: a parenthesis is closed before it is opened"]
    found = [*_kind_problems(root), *_function_problems(sql, root, columns)]
    found += [*_match_problems(root), *_writing_problems(root)]
    found += _constant_problems(root, columns)
    types = columns if isinstance(columns, Mapping) else {}
    found += literal_problems(sql, lambda argument: type_of(argument, types))
    if columns is not None:
        found += _column_problems(root, columns)
    return list(dict.fromkeys(found))


def condition_problems(
    sql: str, columns: Collection[str] | None, kinds: Collection[str] = CONDITIONS
) -> list[str]:
    """List the problems of an expression, or that its type is known and none of ``kinds``."""
    problems = expression_problems(sql, columns)
    kind = type_of(sql, columns if isinstance(columns, Mapping) else {}) if not problems else None
    if kind is not None and kind.partition("(")[0] not in kinds:
        problems = [f"is {kind}; write a condition, which is true, false or null"]
    return problems


def _closes_too_early(sql: str) -> bool:
    """Return whether a text is SQL between two parentheses only, such as ``a > 0) OR (b``."""
    steps = {"L_PAREN": 1, "R_PAREN": -1}
    depths = accumulate(steps.get(token.token_type.name, 0) for token in Spark().tokenize(sql))
    return any(depth < 0 for depth in depths)


def syntax_problem(sql: str, error: Exception, what: str) -> str:
    """Describe an error of the parser; ``what`` is what should have been written."""
    if ";" in re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "", sql):
        return f"contains a semicolon; write one {what}, not several statements"
    if isinstance(error, ParseError) and error.errors:
        first = error.errors[0]
        # sqlglot's message on a missing operand names its internal classes.
        description = re.sub("Required keyword.*", "something is missing", first["description"])
        return f"is not valid SQL: {description} near '{first['highlight']}'"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if not isinstance(error, SqlglotError):
        return "is not valid SQL: an argument of a function is missing"
    return "is not valid SQL: a quote or a comment is left open"


def _only_expression(statements: list[exp.Expr | None]) -> exp.Expr | str:
    select = statements[0] if len(statements) == 1 else None
    if not isinstance(select, exp.Select):
        return "contains more than one statement; write one SQL expression"
    clauses = [name for name, value in select.args.items() if value and name != "expressions"]
    roots = select.expressions
    if clauses or len(roots) != 1 or isinstance(roots[0], exp.Tuple):
        return "contains more than one expression; write one"
    root: exp.Expr = roots[0]
    if isinstance(root, exp.Paren) and isinstance(root.this, exp.Alias):
        return f"has an alias (AS {root.this.alias}); remove it, the key already names the result"
    return root


def _kind_problems(root: exp.Expr) -> Iterator[str]:
    if root.find(exp.Query):
        yield "contains a subquery; an expression can use only its own row"
    for node in root.walk():
        yield from (problem for kind, problem in _UNSUPPORTED if isinstance(node, kind))
        # The parser's SQL for it is TIMESTAMP, so that neither its type nor its guards are right.
        if isinstance(node, exp.DataType) and node.this is exp.DataType.Type.TIME:
            yield "uses the type TIME, which Spark does not support; write the time of day as text"


def _function_problems(sql: str, root: exp.Expr, columns: Collection[str] | None) -> Iterator[str]:
    """Check functions by their names in the text: sqlglot's tree renames some (``date_add``)."""
    tokens = [(token.token_type.name, token.text.lower()) for token in Spark().tokenize(sql)]
    for number, ((kind, name), following) in enumerate(pairwise(tokens)):
        is_word = kind == "IDENTIFIER" or (kind != "STRING" and _WORD.fullmatch(name))
        if is_word and following[0] == "L_PAREN":
            after = tokens[number - 1][1] if number else ""
            has_no_arguments = tokens[number + 2 : number + 3] == [("R_PAREN", ")")]
            yield from _call_problems(name, after=after, has_no_arguments=has_no_arguments)
    known = {column.lower() for column in columns or ()}
    for node in root.walk():
        if isinstance(node, exp.Column) and len(node.parts) == 1:
            name = node.name.lower()
            # Columns of another pipeline are not known here; one of them may be named user.
            if name in NO_PARENTHESES - known and (columns is not None or name != "user"):
                yield _nondeterministic_problem(name)
        elif isinstance(node, exp.Func) and node.sql_name().lower() in NO_PARENTHESES:
            yield _nondeterministic_problem(node.sql_name().lower())


def _nondeterministic_problem(name: str) -> str:
    return f"calls {name}, whose result changes from run to run; a retry would give another result"


def _call_problems(name: str, *, after: str, has_no_arguments: bool) -> Iterator[str]:
    if after == ".":
        yield f"calls {name} by a qualified name; only Spark's built-in functions can be used"
    elif name in NONDETERMINISTIC or (name == "unix_timestamp" and has_no_arguments):
        yield _nondeterministic_problem(name)
    elif name in WINDOW:
        yield f"calls {name}, a window function; an expression can use only its own row"
    elif name in GENERATORS:
        yield (
            f"calls {name}, which returns several rows for one; a record is one row of silver: use "
            "filter, transform or array_max, or write one record per element before Tidelake"
        )
    elif name in AGGREGATES and after not in ("like", "ilike"):
        yield f"calls {name}, an aggregate; this expression sees one row at a time"
    elif name in XPATH:
        yield f"calls {name}, which reads files and URLs that the XML names; use from_xml"
    elif name in FAILING:
        yield f"calls {name}, whose error would stop the run; write an expectation instead"
    elif name not in DETERMINISTIC | SYNTAX | AGGREGATES and (name, after) != ("all", "like"):
        hint = suggestion(name, DETERMINISTIC)
        yield f"calls {name}, which is not known to be deterministic{hint}"


def _match_problems(root: exp.Expr) -> Iterator[str]:
    """Find matches that may overflow Java's stack, on texts whose length no guard can limit."""
    for node in root.walk():
        if operands_to_bound(node) and node.find_ancestor(exp.Lambda):
            yield (
                "matches a pattern in a lambda function, where a long text may overflow Java's "
                "stack; write the pattern as a literal, and repeat a class ([ab]*) or make the "
                "group possessive ((a|b)*+)"
            )


def _writing_problems(root: exp.Expr) -> Iterator[str]:
    """Find parts that cannot be written as SQL again, as the guards of each row require."""
    try:
        root.sql(dialect=DIALECT, unsupported_level=ErrorLevel.IGNORE)
    except UNREADABLE as error:
        yield f"cannot be analysed ({error}); write it in another way"


def _constant_problems(root: exp.Expr, columns: Collection[str] | None) -> Iterator[str]:
    """Find constants that Spark casts to the time of the query."""
    for node in root.walk():
        if isinstance(node, exp.Literal | exp.RawString | exp.National):
            text = re.sub(r"^[\0- ]+|[\0- ]+$", "", node.name)
            if _TIME_OF_QUERY.fullmatch(text) and not _is_text(node, columns):
                yield (
                    f"contains '{text}', which Spark casts to the time of the query if it "
                    f"expects a time; to compare text, write LIKE '{text}'"
                )
            elif re.search(DATELESS, text) and _is_beside_timestamp(node, columns):
                yield (
                    f"combines '{text}' with a timestamp, for which Spark adds the date of the "
                    "query; write the date too"
                )
        elif isinstance(node, _TO_TIME) and node.this is not None and not _has_input(node):
            to_time = node.to.is_type(*_TIME_TYPES) if isinstance(node, exp.Cast) else True
            if cast_to_timestamp(node) and re.search(DATELESS, node.this.name):
                yield (
                    f"casts '{node.this.name}' to a timestamp, to which Spark adds the date of the "
                    "query; write the date too"
                )
            if to_time and not isinstance(node.this, exp.Literal) and _builds_text(node.this):
                yield "casts computed text to a time; write the time as a literal"


def _is_text(constant: exp.Expr, columns: Collection[str] | None) -> bool:
    """Return whether Spark certainly does not cast a constant to a time."""
    operand, around = constant, constant.parent
    while isinstance(around, exp.Paren | exp.Tuple | exp.Any | exp.All) or (
        isinstance(around, exp.If) and isinstance(around.parent, exp.Case)
    ):
        if not isinstance(around, exp.If):
            operand = around
        around = around.parent
    if isinstance(around, _PATTERNS):
        return True
    if around is None or not _has_input(around):
        return False
    if isinstance(around, _CONCATENATIONS):
        return True
    if not isinstance(around, _COMMON_TYPE) or not isinstance(columns, Mapping):
        return False
    return all(
        isinstance(other, exp.Literal) or _kind_of(other, columns) == "STRING"
        for other in _operands_with(operand, around)
    )


def _is_beside_timestamp(constant: exp.Expr, columns: Collection[str] | None) -> bool:
    """Return whether Spark certainly casts a constant to the timestamp beside it."""
    around = constant.parent
    if not isinstance(around, (*_COMMON_TYPE, *_ORDERED)) or not isinstance(columns, Mapping):
        return False
    kinds = (_kind_of(other, columns) for other in _operands_with(constant, around))
    return any(kind is not None and kind.startswith("TIMESTAMP") for kind in kinds)


def _operands_with(operand: exp.Expr, around: exp.Expr) -> list[exp.Expr]:
    """Return the operands that Spark casts to a common type with an operand, itself included."""
    groups = operands_of_a_type(around)
    return next((group for group in groups if any(one is operand for one in group)), [])


def _has_input(node: exp.Expr) -> bool:
    """Return whether an expression depends on the row."""
    return any(
        isinstance(part, exp.Column)
        or (isinstance(part, exp.Identifier) and part.find_ancestor(exp.Lambda))
        for part in node.walk()
    )


def _builds_text(node: exp.Expr) -> bool:
    if _kind_of(node, {}) not in ("STRING", "BINARY", None):
        return False
    return any(
        isinstance(part, exp.HexString | exp.RawString)
        or (isinstance(part, exp.Literal) and part.is_string)
        for part in node.walk()
    )


def _column_problems(root: exp.Expr, columns: Collection[str]) -> Iterator[str]:
    known = {column.lower() for column in columns}
    for column in root.find_all(exp.Column):
        # In `a.b` the column is the struct `a`.
        name = column.parts[0].name
        if name.lower() not in known and name.lower() not in NO_PARENTHESES:
            yield unknown("column", name, columns)
    if isinstance(columns, Mapping):
        yield from field_problems(root, {name.lower(): kind for name, kind in columns.items()})


def as_operand(sql: str) -> str:
    """Return an expression as a part of a longer text, which a comment at its end does not hide."""
    return f"{sql}\n" if "--" in sql else sql


def columns_in(sql: str) -> set[str]:
    """Return the columns that an expression uses, in lower case; none of one that is no SQL."""
    try:
        root = sqlglot.parse_one(f"SELECT ({as_operand(sql)})", dialect="spark")
    except UNREADABLE:
        # Spark reports it, or expression_problems does.
        return set()
    return {column.parts[0].name.lower() for column in root.find_all(exp.Column)}


def type_of(sql: str, columns: Types) -> str | None:
    """Infer an expression's type from its columns' types; None where only Spark can infer it."""
    # The parser takes `b` in `struct(a = b)` for a field `a`.
    if re.search(r"\bstruct\s*\(.*=", sql, re.DOTALL | re.IGNORECASE):
        return None
    try:
        root = sqlglot.parse_one(f"SELECT ({as_operand(sql)})", dialect=DIALECT)
    except UNREADABLE:
        return None
    return _kind_of(root.selects[0], columns) if isinstance(root, exp.Select) else None


def _kind_of(node: exp.Expr, columns: Types) -> str | None:
    if node.find(exp.Collate):
        # Functions of the text have its collation too.
        return None
    # A sum of hundreds of terms is as deep.
    with suppress(RecursionError):
        return kind_of(node, {name.lower(): kind for name, kind in columns.items()})
    return None


def operands_to_bound(node: exp.Expr) -> list[exp.Expr]:
    """Return the operands whose length must be limited before a regular expression is matched.

    This is the text if :func:`may_overflow` is true for the pattern, and both text and pattern if
    the pattern is not a literal.
    """
    if not isinstance(node, exp.Func):
        return []
    name = node.sql_name()
    operands = [arg for arg in (node.this, node.args.get("expression")) if arg is not None]
    if isinstance(node, exp.Anonymous):
        name, operands = node.name, node.expressions[:2]
    if not name.lower().startswith(("regexp", "rlike")) or len(operands) < 2:
        return []
    text, pattern = operands
    if not isinstance(pattern, exp.Literal | exp.RawString):
        return [text, pattern]
    return [text] if may_overflow(pattern.name) else []


def cast_to_timestamp(node: exp.Expr) -> exp.Expr | None:
    """Return what an explicit cast makes a timestamp of; None if it is another expression."""
    if isinstance(node, exp.Cast):
        return node.this if node.to.is_type(*_TIMESTAMPS) else None
    if isinstance(node, exp.Anonymous) and len(node.expressions) == 1:
        operand: exp.Expr = node.expressions[0]
        return operand if node.name.lower() in _TO_TIMESTAMP else None
    return None


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Spark's functions, grouped by whether an expression may call them. An unlisted function is
# refused, because it could make the retry of a batch differ from the first attempt. A test compares
# the lists with the functions of the installed Spark.
#
# The result depends on the arguments only, in any session and at any time.
DETERMINISTIC = _words(
    """
    abs acos acosh add_months aes_decrypt aggregate approx_top_k_estimate array array_append
    array_compact array_contains array_distinct array_except array_insert array_intersect array_join
    array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort
    array_union arrays_overlap arrays_zip ascii asin asinh atan atan2 atanh base64 bigint bin binary
    bit_count bit_get bit_length bitmap_bit_position bitmap_bucket_number bitmap_count boolean
    bround btrim cardinality cast cbrt ceil ceiling char char_length character_length chr coalesce
    collate collation concat concat_ws contains conv convert_timezone cos cosh cot crc32 csc date
    date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd
    datediff datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees double e
    element_at elt encode endswith equal_null exists exp expm1 extract factorial filter find_in_set
    flatten float floor forall format_number format_string from_avro from_csv from_json
    from_protobuf from_unixtime from_utc_timestamp from_xml get get_json_object getbit greatest hash
    hex hll_sketch_estimate hll_union hour hypot if ifnull initcap instr int is_valid_utf8
    is_valid_variant is_variant_null isnan isnotnull isnull json_array_length json_object_keys
    kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float
    kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
    kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
    kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float
    kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float last_day
    lcase least left len length levenshtein ln locate log log10 log1p log2 lower lpad ltrim
    luhn_check make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz
    make_timestamp_ntz make_valid_utf8 make_ym_interval map map_concat map_contains_key map_entries
    map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with mask md5 minute mod
    month monthname months_between named_struct nanvl negative next_day nullif nullifzero nvl nvl2
    octet_length overlay parse_json parse_url pi pmod position positive pow power printf quarter
    quote radians reduce regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like
    regexp_replace regexp_substr repeat replace reverse right rint round rpad rtrim schema_of_avro
    schema_of_csv schema_of_json schema_of_variant schema_of_xml sec second sentences sequence sha
    sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh size slice smallint
    sort_array soundex space split split_part sqrt st_asbinary st_geogfromwkb st_geomfromwkb
    st_setsrid st_srid startswith str_to_map string struct substr substring substring_index tan tanh
    theta_difference theta_intersection theta_sketch_estimate theta_union time time_bucket time_diff
    time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
    time_to_seconds time_trunc timestamp timestamp_micros timestamp_millis timestamp_seconds
    timestampadd timestampdiff tinyint to_avro to_binary to_char to_csv to_date to_json to_number
    to_protobuf to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
    to_utc_timestamp to_varchar to_variant_object to_xml transform transform_keys transform_values
    translate trim trunc try_add try_aes_decrypt try_cast try_divide try_element_at
    try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod
    try_multiply try_parse_json try_parse_url try_subtract try_to_binary try_to_date try_to_number
    try_to_time try_to_timestamp try_url_decode try_validate_utf8 try_variant_get
    tuple_difference_double tuple_difference_integer tuple_difference_theta_double
    tuple_difference_theta_integer tuple_intersection_double tuple_intersection_integer
    tuple_intersection_theta_double tuple_intersection_theta_integer tuple_sketch_estimate_double
    tuple_sketch_estimate_integer tuple_sketch_summary_double tuple_sketch_summary_integer
    tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_double tuple_union_integer
    tuple_union_theta_double tuple_union_theta_integer typeof ucase unbase64 unhex unix_date
    unix_micros unix_millis unix_seconds unix_timestamp upper url_decode url_encode validate_utf8
    variant_get vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm
    vector_normalize weekday weekofyear width_bucket window_time xxhash64 year zeroifnull zip_with
    """
)
# The result depends on the clock, the session, chance, the row's file or task, or on Java code.
NONDETERMINISTIC = _words(
    """
    aes_encrypt curdate current_catalog current_database current_date current_path current_schema
    current_time current_timestamp current_timezone current_user current_version getdate
    input_file_block_length input_file_block_start input_file_name java_method localtime
    localtimestamp monotonically_increasing_id now rand randn random randstr reflect session_user
    shuffle spark_partition_id sysdate try_reflect uniform user uuid version
    """
)
# Also callable without parentheses, unless a column has the name.
NO_PARENTHESES = _words(
    "current_date current_time current_timestamp current_user localtimestamp session_user user"
)
AGGREGATES = _words(
    """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg
    bitmap_or_agg bool_and bool_or collect_list collect_set corr count count_if count_min_sketch
    covar_pop covar_samp every first first_value grouping grouping_id histogram_numeric
    hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value
    listagg max max_by mean measure median min min_by mode percentile percentile_approx
    percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope
    regr_sxx regr_sxy regr_syy schema_of_variant_agg skewness some std stddev stddev_pop stddev_samp
    string_agg sum theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum
    tuple_intersection_agg_double tuple_intersection_agg_integer tuple_sketch_agg_double
    tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer var_pop var_samp
    variance vector_avg vector_sum
    """
)
WINDOW = _words(
    """
    cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number session_window window
    """
)
GENERATORS = _words(
    """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack
    variant_explode variant_explode_outer
    """
)
# Functions that raise an error, which would stop the run.
FAILING = _words("assert_true raise_error")
# Functions that read a file or a URL which the XML of a record names.
XPATH = _words(
    """
    xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short
    xpath_string
    """
)
# Words that may precede a parenthesis without being a function call.
SYNTAX = _words(
    """
    and between both case character collate dec distinct div else escape for from ilike in interval
    is leading like not numeric or over placing regexp rlike select then trailing varchar when
    """
)
