# Databricks notebook source
# MAGIC %md
# MAGIC # The shop's clickstream, for analysts
# MAGIC
# MAGIC Query gold tables in SQL by their logical names, without Spark. `TIDELAKE_ROOT` is the root of the tables; fill them with `tidelake demo`. The columns are described in the [data dictionary](../docs/data-dictionary.md). On Databricks install the wheel first (`%pip install`, with its path) and name the environment: `open_lakehouse(env="prod")`.

# COMMAND ----------

import matplotlib.pyplot as plt

from tidelake.lakehouse import open_lakehouse

lake = open_lakehouse()
lake.tables()

# COMMAND ----------

# MAGIC %md
# MAGIC ## How busy is the shop?
# MAGIC
# MAGIC `action_activity_5m` has a row per kind of action and five-minute window, with a new window each minute; every fifth window gives windows that do not overlap. With `consistent=True` all tables of a statement are read as of the same epoch.

# COMMAND ----------

activity = lake.ask(
    """
    SELECT date_trunc('hour', window_start) AS hour, action, sum(events) AS events
    FROM gold.action_activity_5m
    WHERE minute(window_start) % 5 = 0 AND action <> 'bot'
    GROUP BY ALL ORDER BY hour
    """,
    consistent=True,
)
by_hour = activity.pivot(index="hour", columns="action", values="events").fillna(0)
figure, axes = plt.subplots(figsize=(9, 4))
by_hour.plot(ax=axes, kind="area", linewidth=0, title="Actions an hour (UTC)")
axes.set(xlabel="", ylabel="actions")
axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.tight_layout()

# COMMAND ----------

# MAGIC %md
# MAGIC ## How long are visits?
# MAGIC
# MAGIC A session ends after 30 minutes without an action. Open sessions are in `gold.user_sessions` too, and still change; `gold.user_sessions__final` holds only sessions that the watermark has passed.

# COMMAND ----------

visits = lake.ask(
    """
    SELECT session_start, session_end, events, total_value
    FROM gold.user_sessions WHERE events > 1
    """,
    consistent=True,
)
# Subtracting timestamps differs between SQL dialects, so pandas does it.
lasted = visits.pop("session_end") - visits.pop("session_start")
visits["minutes"] = lasted.dt.total_seconds() / 60
figure, axes = plt.subplots(figsize=(9, 4))
visits["minutes"].plot(
    ax=axes, kind="hist", bins=30, title="Length of visits with more than one action"
)
axes.set(xlabel="minutes", ylabel="visits")
plt.tight_layout()
visits.describe()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which categories sell?
# MAGIC
# MAGIC `gold.product_totals` counts each product over all time; `dim.products` holds its current attributes.

# COMMAND ----------

revenue = lake.ask(
    """
    SELECT coalesce(p.category, 'no longer sold') AS category, sum(t.revenue) AS revenue
    FROM gold.product_totals t LEFT JOIN dim.products p USING (product_id)
    WHERE t.revenue IS NOT NULL GROUP BY ALL ORDER BY revenue
    """
)
figure, axes = plt.subplots(figsize=(9, 4))
revenue.plot(ax=axes, kind="barh", x="category", y="revenue", legend=False, title="Revenue")
axes.set(xlabel="in the shop's currency", ylabel="")
plt.tight_layout()

# COMMAND ----------

# MAGIC %md
# MAGIC ## How soon after a click do visitors buy?
# MAGIC
# MAGIC A row of `gold.click_to_purchase` is a click, joined with the first purchase within 30 minutes, if there is one.

# COMMAND ----------

waits = lake.ask(
    """
    SELECT clicked_at, bought_at FROM gold.click_to_purchase WHERE bought_at IS NOT NULL
    """
)
waits["minutes"] = (waits["bought_at"] - waits["clicked_at"]).dt.total_seconds() / 60
figure, axes = plt.subplots(figsize=(9, 4))
waits["minutes"].plot(ax=axes, kind="hist", bins=30, range=(0, 30), title="From click to purchase")
axes.set(xlabel="minutes", ylabel="purchases")
plt.tight_layout()
lake.ask("SELECT count(*) AS clicks, count(bought_at) AS bought FROM gold.click_to_purchase")
