"""Make a Spark Connect client refuse what serverless compute refuses.

Python imports this by itself where its folder is on the path: in the driver, and in the server's
workers.
"""

import sys
from typing import Any

# The server puts its archive of PySpark first, which each worker compiles anew; it has ten seconds
# to connect, and on a busy machine that was not always enough.
sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]

from pyspark.errors import AnalysisException  # noqa: E402  of the path above
from pyspark.sql.connect.conf import RuntimeConf  # noqa: E402  of the path above
from pyspark.sql.connect.dataframe import DataFrame  # noqa: E402  of the path above


def _refuse(*_: Any, **__: Any) -> None:
    raise AnalysisException("[CONFIG_NOT_AVAILABLE] not on serverless compute")


for _name in ("set", "unset"):
    setattr(RuntimeConf, _name, _refuse)
for _name in ("cache", "persist", "checkpoint", "localCheckpoint"):
    setattr(DataFrame, _name, _refuse)
