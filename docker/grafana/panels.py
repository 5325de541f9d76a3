"""Dashboards in few words.

A page is rows of panels; a panel is a title, what it tells in a sentence, a unit, and queries with their legends.
"""

from dataclasses import dataclass, field
from typing import Any

COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "prometheus"}
RED, AMBER, GREEN = "red", "orange", "green"


@dataclass(frozen=True)
class Panel:
    """One panel; `limits` are (value, colour) from the lowest up."""

    title: str
    tells: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """(PromQL, legend) each."""
    kind: str = "timeseries"
    limits: tuple[tuple[float, str], ...] = ()
    stack: bool = False
    most: float | None = None
    """Top of the axis."""
    height: int = 7
    text: str = ""
    mappings: tuple[tuple[str, str, str], ...] = ()
    """(value, word, colour) for states."""

    def spell(self, number: int, x: int, y: int, width: int) -> dict[str, Any]:
        """The panel in Grafana's JSON."""
        place = {"h": self.height, "w": width, "x": x, "y": y}
        head = {"id": number, "title": self.title, "description": self.tells, "gridPos": place, "type": self.kind}
        if self.kind == "text":
            return head | {"options": {"mode": "markdown", "content": self.text}}
        targets = [
            {"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend, "datasource": SOURCE}
            | ({"format": "heatmap"} if self.kind == "heatmap" else {})
            for i, (query, legend) in enumerate(self.queries)
        ]
        return head | {
            "datasource": SOURCE,
            "targets": targets,
            "fieldConfig": self._field(),
            "options": self._options(),
        }

    def _field(self) -> dict[str, Any]:
        steps = [{"value": None, "color": GREEN}] + [{"value": at, "color": colour} for at, colour in self.limits]
        defaults: dict[str, Any] = {"unit": self.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
        if self.most is not None:
            defaults["max"] = self.most
        if self.unit == "short-signed":
            defaults["unit"] = "bytes"
            del defaults["min"]
        if self.kind == "timeseries":
            defaults["custom"] = {
                "fillOpacity": 60 if self.stack else 8,
                "stacking": {"mode": "normal" if self.stack else "none"},
                "thresholdsStyle": {"mode": "dashed" if self.limits else "off"},
                "showPoints": "never",
            }
        if self.mappings:
            words = {value: {"text": word, "color": colour} for value, word, colour in self.mappings}
            defaults["mappings"] = [{"type": "value", "options": words}]
        return {"defaults": defaults, "overrides": []}

    def _options(self) -> dict[str, Any]:
        if self.kind == "timeseries":
            return {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        if self.kind == "state-timeline":
            return {"showValue": "never", "rowHeight": 0.8, "legend": {"showLegend": False}}
        if self.kind == "heatmap":
            return {"calculate": False, "yAxis": {"unit": self.unit}, "color": {"scheme": "Blues", "mode": "scheme"}}
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "graphMode": "area"}


@dataclass(frozen=True)
class Row:
    """Panels side by side, under a heading."""

    title: str
    panels: tuple[Panel, ...] = field(default=())


def page(uid: str, title: str, tells: str, rows: tuple[Row, ...]) -> dict[str, Any]:
    """A dashboard in Grafana's JSON."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        heading = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row.title, "gridPos": heading, "panels": []})
        y += 1
        edges = [COLUMNS * i // len(row.panels) for i in range(len(row.panels) + 1)]
        for panel, x, end in zip(row.panels, edges[:-1], edges[1:], strict=True):
            panels.append(panel.spell(len(panels) + 1, x, y, end - x))
        y += max(panel.height for panel in row.panels)
    return {
        "uid": uid,
        "title": title,
        "description": tells,
        "tags": ["vramgate"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": []},
        "annotations": {"list": [ALERTS]},
        "links": [{"type": "dashboards", "tags": ["vramgate"], "asDropdown": False, "title": ""}],
        "panels": panels,
    }


ALERTS = {
    "name": "alerts",
    "enable": True,
    "datasource": SOURCE,
    "expr": 'ALERTS{alertstate="firing", alertname=~".+"}',
    "titleFormat": "{{alertname}}",
    "iconColor": RED,
    "step": "10s",
}


def quantiles(metric: str, by: str = "", which: tuple[float, ...] = (0.5, 0.95, 0.99)) -> tuple[tuple[str, str], ...]:
    """Queries for quantiles of a histogram, for each value of the label `by`."""
    labels, legend = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    return tuple(
        (f"histogram_quantile({q:g}, sum by ({labels}) (rate({metric}_bucket[1m])))", f"{legend}p{q * 100:g}")
        for q in which
    )


def rate(metric: str, *by: str, legend: str = "", where: str = "") -> tuple[str, str]:
    """A query for events a second."""
    words = legend or " ".join(f"{{{{{label}}}}}" for label in by)
    return f"sum by ({', '.join(by)}) (rate({metric}{where}[1m]))", words


def or_zero(query: str, label: str) -> str:
    """`query` where it is above 0; else a flat 0, so that a quiet panel differs from one without data."""
    return f'{query} > 0 or label_replace(vector(0), "{label}", "none", "", "")'
