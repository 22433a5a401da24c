# Databricks notebook source
# MAGIC %md
# MAGIC # Where is this event?
# MAGIC
# MAGIC Use this notebook if a number is wrong or an event is missing: it follows records from the source to gold. The command line equivalent is `tidelake fate clickstream --event-id …`. On Databricks install the wheel first (`%pip install`, with its path) and name the environment: `open_lakehouse(env="prod")`.

# COMMAND ----------

from tidelake.lakehouse import open_lakehouse

lake = open_lakehouse()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Does the ledger balance?
# MAGIC
# MAGIC Every row of bronze has exactly one fate. If the ledger balances, no row is lost, and the event has one of these fates.

# COMMAND ----------

books = lake.books("clickstream")
books

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which rows were quarantined or late, and why?

# COMMAND ----------

lake.quarantine("clickstream")

# COMMAND ----------

lake.late("clickstream")

# COMMAND ----------

# MAGIC %md
# MAGIC ## One event, all of its records
# MAGIC
# MAGIC Insert the id in question. The example is an id that arrived with two different payloads, if there is one: the first arrival was accepted, identical copies are duplicates, and the conflicting record is in quarantine. If there is none, it is any accepted id.

# COMMAND ----------

event_id = ""  # yours; empty: the example
suspect = lake.ask(
    """
    SELECT coalesce(
        (SELECT min(event_id) FROM silver.clickstream__quarantine
         WHERE stage = 'conflicting_duplicate'),
        (SELECT event_id FROM silver.clickstream LIMIT 1)
    ) AS event_id
    """
)
event_id = event_id or suspect["event_id"].iloc[0]
records = lake.fate("clickstream", event_id=event_id)
records[["record_id", "state", "stage", "reasons", "payload"]]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which rows of gold count it?

# COMMAND ----------

counted = lake.counted("clickstream", event_id=event_id)
counted

# COMMAND ----------

# MAGIC %md
# MAGIC ## A record without an id
# MAGIC
# MAGIC A payload that does not parse has no event id. Its record id gives the file and line, or the topic, partition and offset. If all payloads parse, the example is any record.

# COMMAND ----------

record_id = ""  # yours; empty: the example
broken = lake.ask(
    """
    SELECT coalesce(
        (SELECT record_id FROM silver.clickstream__quarantine WHERE stage = 'parse' LIMIT 1),
        (SELECT record_id FROM bronze.clickstream LIMIT 1)
    ) AS record_id
    """
)
lake.fate("clickstream", record_id=record_id or broken["record_id"].iloc[0])

# COMMAND ----------

# MAGIC %md
# MAGIC ## Are the tables themselves right?
# MAGIC
# MAGIC Silver is recomputed from bronze and each gold table from silver, and compared row by row. This needs Spark.

# COMMAND ----------

bench = lake.workbench("clickstream")
verdict = bench.verify()
bench.close()
verdict
