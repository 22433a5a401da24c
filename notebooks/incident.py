# Databricks notebook source
# MAGIC %md
# MAGIC # Where is this event?
# MAGIC
# MAGIC Somebody says that a number is wrong, or that an event is missing. This notebook follows records from the source to gold. On a terminal the same is `tidelake fate clickstream --event-id …`.

# COMMAND ----------

from tidelake.lakehouse import open_lakehouse

lake = open_lakehouse()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Do the books balance?
# MAGIC
# MAGIC Every row of bronze has exactly one fate. If the terms add up, nothing is lost, and the question is only where the event went.

# COMMAND ----------

books = lake.books("clickstream")
books

# COMMAND ----------

# MAGIC %md
# MAGIC ## What was refused, and why?

# COMMAND ----------

lake.quarantine("clickstream")

# COMMAND ----------

lake.late("clickstream")

# COMMAND ----------

# MAGIC %md
# MAGIC ## One event, all of its records
# MAGIC
# MAGIC Put in the id that was asked for. Here it is one whose id came twice with different payloads: the first arrival was accepted, copies were dropped as duplicates, the contradiction is in quarantine.

# COMMAND ----------

suspect = lake.ask(
    """
    SELECT event_id FROM silver.clickstream__quarantine
    WHERE stage = 'conflicting_duplicate' ORDER BY event_id LIMIT 1
    """
)
event_id = suspect["event_id"].iloc[0]
records = lake.fate("clickstream", event_id=event_id)
records[["record_id", "state", "stage", "reasons", "payload"]]

# COMMAND ----------

# MAGIC %md
# MAGIC ## In which rows of gold does it count?

# COMMAND ----------

counted = lake.counted("clickstream", event_id=event_id)
counted

# COMMAND ----------

# MAGIC %md
# MAGIC ## A record without an id
# MAGIC
# MAGIC What does not parse has no event id. Its record id says in which file and line, or where in a topic, it came.

# COMMAND ----------

broken = lake.ask(
    "SELECT record_id FROM silver.clickstream__quarantine WHERE stage = 'parse' LIMIT 1"
)
lake.fate("clickstream", record_id=broken["record_id"].iloc[0])

# COMMAND ----------

# MAGIC %md
# MAGIC ## Are the tables themselves right?
# MAGIC
# MAGIC Silver is computed anew from bronze, each gold table from silver, and compared row by row. This needs Spark.

# COMMAND ----------

bench = lake.workbench("clickstream")
verdict = bench.verify()
bench.close()
verdict
