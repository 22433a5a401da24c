# Databricks notebook source
# MAGIC %md
# MAGIC # Rebuild gold next to the live tables
# MAGIC
# MAGIC After a definition changed, or if the tables may be wrong: rebuild gold from silver, compare, swap and roll back. Readers see no change until the swap. The command line has the same steps under `tidelake backfill`. On Databricks install the wheel first (`%pip install`, with its path) and name the environment: `open_lakehouse(env="prod")`.

# COMMAND ----------

from tidelake.lakehouse import open_lakehouse

lake = open_lakehouse()
bench = lake.workbench("clickstream")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What would it read?
# MAGIC
# MAGIC From `bronze`, silver and gold are recomputed; from `silver`, only gold. `seconds` is an estimate from the durations of earlier batches.

# COMMAND ----------

bench.plan("silver")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Build
# MAGIC
# MAGIC Green tables are filled under `backfill/clickstream`, while hops continue on the live tables. After an interruption, repeat the call to continue.

# COMMAND ----------

bench.build("silver")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Compare
# MAGIC
# MAGIC With an unchanged definition nothing may differ, except sketches within their error.

# COMMAND ----------

changes = bench.compare()
changes

# COMMAND ----------

# MAGIC %md
# MAGIC ## Swap, and check that the numbers are the same

# COMMAND ----------

question = "SELECT count(*) AS visits, sum(events) AS events FROM gold.user_sessions"
before = lake.ask(question)
bench.promote()
after = lake.ask(question)
after

# COMMAND ----------

# MAGIC %md
# MAGIC ## Roll back
# MAGIC
# MAGIC The tables are restored to their state before the swap; the next run processes newer arrivals.

# COMMAND ----------

bench.rollback()
restored = lake.ask(question)
bench.close()
restored
