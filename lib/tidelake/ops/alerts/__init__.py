"""Alerts: open conditions of a pipeline that somebody should look at, judged by its tables."""

from __future__ import annotations

from tidelake.ops.alerts.alert import Alert, Severity
from tidelake.ops.alerts.rules import RULES, alerts_of

__all__ = ["RULES", "Alert", "Severity", "alerts_of"]
