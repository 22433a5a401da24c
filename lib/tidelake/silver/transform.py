"""Call a function of the user's that adds or replaces columns, and refuse what breaks its contract.

The function gets every row of a batch with the columns ``_record`` (opaque, returned as it is),
``event_id``, ``event_time`` and the selected ones; rows that cannot be parsed have nulls there. Of
its result only ``_record`` and the declared columns are used.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidelake.config import Pipeline
from tidelake.config.locations import project_above
from tidelake.errors import TransformError
from tidelake.spark.internals import is_deterministic
from tidelake.visible import visible
from tidelake.without_pandas import show_pandas

RECORD = "_record"
_LONGEST = 300
Function = Callable[[DataFrame], DataFrame]


@dataclass
class UserFunction:
    """A transform function, tried once on an empty frame before its first use.

    ``place`` begins its messages, ``ddl`` declares its columns.
    """

    function: Function
    ddl: str
    place: str
    # The declared columns, once it was tried.
    _declared: list[str] = field(default_factory=list, init=False)

    @staticmethod
    def of(pipeline: Pipeline) -> UserFunction:
        """Import the function of a pipeline that has one."""
        assert pipeline.transform is not None
        path = pipeline.transform.function
        place = f"{pipeline.file}: transform {path}"
        function = _imported(path, project_of(pipeline.file), place)
        return UserFunction(function, pipeline.transform.columns_ddl, place)

    def on_selected(self, judged: DataFrame, pipeline: Pipeline, selected: str) -> DataFrame:
        """Return rows with the function's columns in the struct ``selected``."""
        shown = [name for name in pipeline.selected if not name.startswith("_")]
        plain = judged.select(
            F.struct("*").alias(RECORD),
            *["event_id", "event_time"],
            *[F.col(selected).getField(name).alias(name) for name in shown],
        )
        record, own = F.col(RECORD), pipeline.transformed
        columns = [
            F.col(name) if name in own else record.getField(selected).getField(name).alias(name)
            for name in pipeline.silver_columns
        ]
        return self.on(plain).select(
            *[record.getField(name).alias(name) for name in judged.columns if name != selected],
            F.struct(*columns).alias(selected),
        )

    def on(self, plain: DataFrame) -> DataFrame:
        """Return ``_record`` and the declared columns of the result.

        Raises:
            TransformError: The function failed, or its result breaks the contract.
        """
        if not self._declared:
            self._declared = self._tried(plain)
        return self._called(plain).select(RECORD, *self._declared)

    def _called(self, plain: DataFrame) -> DataFrame:
        try:
            found: object = self.function(plain)
            if isinstance(found, DataFrame):
                # Through Spark Connect the plan is analysed only now.
                _ = found.schema
        except Exception as error:
            raise TransformError(f"{self.place} failed: {_described(error)}") from error
        if not isinstance(found, DataFrame):
            raise TransformError(
                f"{self.place} must return a DataFrame, not {type(found).__name__}"
            )
        return found

    def _tried(self, plain: DataFrame) -> list[str]:
        """Try the function on an empty frame, whose plan holds nothing but the function's.

        Returns:
            The names of the declared columns.
        """
        spark = plain.sparkSession
        result = self._called(spark.createDataFrame([], plain.schema))
        declared = spark.createDataFrame([], self.ddl).schema
        problems = _problems(result.schema, declared, plain.schema)
        if not problems and not is_deterministic(result):
            problems.append("it uses a nondeterministic expression, such as rand() or uuid()")
        if problems:
            raise TransformError(f"{self.place}: {'; '.join(problems)}")
        return declared.names


def _problems(result: StructType, declared: StructType, given: StructType) -> list[str]:
    counts = Counter(result.names)
    problems = [f"it returns the column {name} twice" for name, n in counts.items() if n > 1]
    kinds = {one.name: one.dataType.simpleString() for one in result}
    if kinds.get(RECORD) != given[RECORD].dataType.simpleString():
        problems.append(f"it must return the column {RECORD} as it got it")
    for wanted in declared:
        kind, found = wanted.dataType.simpleString(), kinds.get(wanted.name)
        if found is None:
            problems.append(f"it does not return the declared column {wanted.name}")
        elif found != kind:
            problems.append(f"the column {wanted.name} is declared as {kind}, but is {found}")
    others = [name for name in kinds if name not in {*declared.names, *given.names}]
    problems += [f"it returns the column {name}, which is not declared" for name in others]
    return problems


def project_of(file: str) -> Path:
    """Return the folder of modules: the one with ``tidelake.yml``, or else with ``conf``."""
    folder = Path(file).resolve().parent
    if (root := project_above(folder)) is not None:
        return root
    return folder.parent.parent if folder.name == "pipelines" else folder


def _imported(path: str, project: Path, place: str) -> Function:
    """Import a function from an installed package or from the project's folder."""
    name, _, attribute = path.partition(":")
    if str(project) not in sys.path:
        # Last, so that a file of the project hides no installed package.
        sys.path.append(str(project))
        importlib.invalidate_caches()
    show_pandas()
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise TransformError(
            f"{place} cannot be imported: {_described(error)}. Modules are found among the "
            f"installed packages and in {project}"
        ) from error
    if module.__file__ and Path(module.__file__).resolve().is_relative_to(project):
        package = sys.modules[name.partition(".")[0]]
        # Executors do not have the project's folder: its functions travel with the plan.
        cloudpickle.register_pickle_by_value(package)  # type: ignore[no-untyped-call]
    function = getattr(module, attribute, None)
    if not callable(function):
        raise TransformError(f"{place}: {name} has no function {attribute}")
    return function  # type: ignore[no-any-return]


def _described(error: Exception) -> str:
    """Return class, first line and the innermost place outside of Spark and Python's imports."""
    text = next(iter(str(error).splitlines()), "")
    found = f"{type(error).__name__}: {visible(text)[:_LONGEST]}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)[1:]
        if not frame.filename.startswith("<")
        and not {"pyspark", "py4j", "importlib"} & set(Path(frame.filename).parts)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{found} ({error.filename}, line {error.lineno})"
    return f"{found} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else found
