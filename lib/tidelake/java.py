"""Options of the JVMs that Spark runs in."""

from __future__ import annotations

# Lengths that a broken Avro record may announce: the reader makes room before it looks.
AVRO_LIMITS = (
    "-Dorg.apache.avro.limits.string.maxLength",
    "-Dorg.apache.avro.limits.bytes.maxLength",
    "-Dorg.apache.avro.limits.collectionItems.maxLength",
)
AVRO_OPTIONS = " ".join(f"{limit}={1 << 26}" for limit in AVRO_LIMITS)
EXECUTOR_OPTIONS = f"-Duser.timezone=UTC {AVRO_OPTIONS}"
# Without the second compiler, which takes most of a core for as long as everything is new.
_BRIEF = "-XX:TieredStopAtLevel=1"
# Room for what the compilers make of a thousand generated classes.
_LONG = "-XX:ReservedCodeCacheSize=512m"


def driver_options(archived: str, *, brief: bool) -> str:
    """Give those of the driver.

    Args:
        archived: Those that the archive of classes wants; empty without one.
        brief: Whether it will live for some small batches.
    """
    given = [EXECUTOR_OPTIONS, archived, _BRIEF if brief else _LONG]
    return " ".join(option for option in given if option)
