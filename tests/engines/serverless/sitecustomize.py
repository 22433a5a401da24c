"""Make a Spark Connect client refuse what serverless compute refuses.

Python imports this by itself where its folder is on the path: in the driver, and in the server's
workers.
"""

from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql.connect.conf import RuntimeConf
from pyspark.sql.connect.dataframe import DataFrame


def _refuse(*_: Any, **__: Any) -> None:
    raise AnalysisException("[CONFIG_NOT_AVAILABLE] not on serverless compute")


for _name in ("set", "unset"):
    setattr(RuntimeConf, _name, _refuse)
for _name in ("cache", "persist", "checkpoint", "localCheckpoint"):
    setattr(DataFrame, _name, _refuse)
