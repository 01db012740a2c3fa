"""Compares what the collector received with docs/telemetry.md. `received.py CHECK FILE [ARGUMENT...]` prints each
difference, and exits with 1 if there is one."""

import collections
import json
import pathlib
import re
import sys

PAGE = pathlib.Path("docs/telemetry.md").read_text()
PARENT_SPAN = "00f067aa0ba902b7"
KINDS = {"server": 2, "internal": 1, "client": 3}
DELTA, CUMULATIVE = 1, 2


def section(title):
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text, header):
    """The cells of a table's rows."""
    lines = text.split(header)[1].splitlines()[2:]
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return table


def quoted(text):
    return set(re.findall(r"`([^`]+)`", text))


def plain(value):
    """A value of OTLP's JSON."""
    kind, content = next(iter(value.items()))
    return [plain(item) for item in content["values"]] if kind == "arrayValue" else content


def attributes(item):
    return {entry["key"]: plain(entry["value"]) for entry in item.get("attributes", [])}


class Received:
    """The lines of the file exporter."""

    def __init__(self, path):
        self.spans, self.metrics, self.logs, self.resources = [], [], [], []
        for line in pathlib.Path(path).read_text().splitlines():
            try:
                batch = json.loads(line)
            except ValueError:
                continue  # The last line may be incomplete.
            for signal, inner, items, into in (
                ("resourceSpans", "scopeSpans", "spans", self.spans),
                ("resourceMetrics", "scopeMetrics", "metrics", self.metrics),
                ("resourceLogs", "scopeLogs", "logRecords", self.logs),
            ):
                for resource in batch.get(signal, []):
                    self.resources.append((signal, attributes(resource["resource"])))
                    for scope in resource[inner]:
                        into.extend(scope[items])


def metric_kind(metric):
    if "histogram" in metric:
        return "histogram"
    if "gauge" in metric:
        return "gauge"
    return "counter" if metric["sum"].get("isMonotonic") else "up-down counter"


def data(metric):
    return metric.get("histogram") or metric.get("gauge") or metric["sum"]


def check_metrics(received):
    """Each documented metric arrives with its kind, unit and attributes, and no other."""
    documented = {}
    for name, kind, unit, keys, _ in rows(section("Metrics"), "| metric | kind | unit | attributes | content |"):
        documented[name.strip("`")] = (kind, unit.strip("`"), frozenset(quoted(keys)))
    seen = collections.defaultdict(set)
    forms = {}
    for metric in received.metrics:
        forms[metric["name"]] = (metric_kind(metric), metric.get("unit", ""))
        for point in data(metric)["dataPoints"]:
            seen[metric["name"]].update(attributes(point))
    found = {name: (*form, frozenset(seen[name])) for name, form in forms.items()}
    for name in sorted(documented.keys() | found.keys()):
        if documented.get(name) != found.get(name):
            yield f"{name}: documented {documented.get(name)}, received {found.get(name)}"


def check_temporality(received, name):
    """Counters and histograms have the temporality; up-down counters are always cumulative."""
    wanted = {"delta": DELTA, "cumulative": CUMULATIVE}[name]
    for metric in received.metrics:
        kind = metric_kind(metric)
        if kind != "gauge":
            expected = CUMULATIVE if kind == "up-down counter" else wanted
            if data(metric)["aggregationTemporality"] != expected:
                yield f"{metric['name']} ({kind}) has temporality {data(metric)['aggregationTemporality']}"


def check_calls(received, name, count):
    """The tool calls sum up to what the daemon serves to Prometheus."""
    points = [point for metric in received.metrics if metric["name"] == "jig.tool.calls" for point in data(metric)["dataPoints"]]
    series = collections.Counter()
    for point in points:
        key = json.dumps(attributes(point), sort_keys=True)
        series[key] = int(point["asInt"]) + (series[key] if name == "delta" else 0)
    if series.total() != int(count):
        yield f"received {series.total()} calls, not {count}: {series}"


def spans_of(received, trace):
    return [span for span in received.spans if span["traceId"] == trace]


def check_levels(received, run, failed, egress):
    """The three levels of a call, each below its parent; an error only where it belongs."""
    for trace, is_error in ((run, False), (failed, True), (egress, False)):
        spans = spans_of(received, trace)
        by_name = {span["name"]: span for span in spans if span["name"] != "egress"}
        if set(by_name) != {"jig.v1.ToolService/Run", "execute_tool run", "sh"}:
            yield f"{trace} has the spans {sorted(by_name)}"
            continue
        parent = PARENT_SPAN
        for name, kind in (("jig.v1.ToolService/Run", "server"), ("execute_tool run", "internal"), ("sh", "client")):
            span = by_name[name]
            has_error = span.get("status", {}).get("code") == 2
            if span["parentSpanId"] != parent or span["kind"] != KINDS[kind] or has_error != (is_error and name == "sh"):
                yield f"{trace}: {span}"
            parent = span["spanId"]
    requests = [span for span in spans_of(received, egress) if span["name"] == "egress"]
    decisions = sorted(attributes(span).get("jig.egress.decision") for span in requests)
    if len(set(decisions)) != 2 or any(span["parentSpanId"] != parent for span in requests):
        yield f"requests of the proxy: {decisions}, {requests}"


def check_span_attributes(received):
    """Spans have each documented attribute, and no other."""
    documented = {"error.type"}
    for keys, _, _ in rows(section("Attributes"), "| attribute | span | content |"):
        documented |= quoted(keys)
    found = set()
    for span in received.spans:
        found |= attributes(span).keys()
    for name in sorted(documented ^ found):
        yield f"{name} is {'not emitted' if name in documented else 'not documented'}"


def check_logs(received, *traces):
    """Records of a call name its trace and one of its spans."""
    for trace in traces:
        spans = {span["spanId"] for span in spans_of(received, trace)}
        records = [record for record in received.logs if record.get("traceId") == trace]
        calls = [record for record in records if record["body"]["stringValue"] == "call"]
        if len(calls) != 1 or attributes(calls[0]).get("tool") != "run":
            yield f"access log of {trace}: {records}"
        for record in records:
            if record["spanId"] not in spans:
                yield f"no span of {trace} has this record: {record}"


def check_resources(received):
    """All signals have the same resource."""
    signals = {signal for signal, _ in received.resources}
    if signals != {"resourceSpans", "resourceMetrics", "resourceLogs"}:
        yield f"received only {signals}"
    for _, resource in received.resources:
        wanted = {"service.name": "jigd", "deployment.environment.name": "test", "os.type": "linux"}
        present = {"service.version", "service.instance.id", "process.pid", "host.name"}
        if not wanted.items() <= resource.items() or not present <= resource.keys():
            yield f"resource: {resource}"
    if len({json.dumps(resource, sort_keys=True) for _, resource in received.resources}) != 1:
        yield "the resources differ"


def main():
    check, path, *arguments = sys.argv[1:]
    differences = list(globals()[f"check_{check}"](Received(path), *arguments))
    print(*differences[:20], sep="\n")
    sys.exit(bool(differences))


main()
