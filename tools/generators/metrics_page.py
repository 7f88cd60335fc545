"""docs/reference/metrics.md, from the catalogue of metrics."""

import re
from pathlib import Path

from tools.generators.markdown import note, table

SOURCE = "server/pawl_server/observe/catalogue.py"


def generate(root: Path) -> dict[str, str]:
    """Returns the page."""
    from pawl_server.observe import catalogue

    parts = [
        "# Metrics",
        note(SOURCE),
        "Served at `/metrics` of `metrics_address`, in Prometheus' text format or as OpenMetrics. Counters"
        " begin at 0 with the process and count what this server did. What is read from the store is the same"
        " on every server of a namespace: take the maximum of servers, not the sum. Histograms have the"
        " series `_bucket`, `_sum` and `_count`. Beside these there are `process_…` and `python_gc_…` of the"
        " client library.",
    ]
    for title, names in sections(root / SOURCE):
        rows = []
        for name in names:
            metric: catalogue.Metric = getattr(catalogue, name)
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            rows.append((f"`{metric.name}`", metric.kind, labels, metric.text))
        parts += [f"## {title}", table(("metric", "kind", "labels", "meaning"), rows)]
    return {"docs/reference/metrics.md": "\n\n".join(parts) + "\n"}


def sections(path: Path) -> list[tuple[str, list[str]]]:
    """Returns the headings of the catalogue, each with the names of its constants."""
    found: list[tuple[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            found.append((line[2:], []))
        elif constant := re.match(r"(\w+) = Metric\(", line):
            found[-1][1].append(constant[1])
    return found
