# Databricks notebook source
# MAGIC %md
# MAGIC # Rebuilding gold beside the live tables
# MAGIC
# MAGIC A definition changed, or somebody doubts the tables: fill them anew from what silver holds, look at what a swap would change, swap, and take it back. Readers see nothing until the swap, and all of it at once then. On a terminal these are the steps of `tidelake backfill`.

# COMMAND ----------

from tidelake.lakehouse import open_lakehouse

lake = open_lakehouse()
bench = lake.workbench("clickstream")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What would it read?
# MAGIC
# MAGIC From `bronze` everything is decided anew; from `silver` only gold is computed anew. `seconds` is a guess from what earlier batches took.

# COMMAND ----------

bench.plan("silver")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Build
# MAGIC
# MAGIC Green tables are filled under `backfill/clickstream`. Live ones go on meanwhile. Cut off anywhere, the same call goes on.

# COMMAND ----------

bench.build("silver")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Compare
# MAGIC
# MAGIC Under an unchanged definition nothing may differ but sketches within their error.

# COMMAND ----------

changes = bench.compare()
changes

# COMMAND ----------

# MAGIC %md
# MAGIC ## Swap, and see the same numbers

# COMMAND ----------

question = "SELECT count(*) AS visits, sum(events) AS events FROM gold.user_sessions"
before = lake.ask(question)
bench.promote()
after = lake.ask(question)
after

# COMMAND ----------

# MAGIC %md
# MAGIC ## Take it back
# MAGIC
# MAGIC The tables hold again what they held before the swap; the next run takes in what arrived since.

# COMMAND ----------

bench.rollback()
restored = lake.ask(question)
bench.close()
restored
