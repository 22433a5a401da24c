"""Operations: status, alerts, metrics, lineage, maintenance, serving, the live page."""
