"""Checks of alert rules and the dashboard. `monitoring.py CHECK [ARGUMENT...]` prints each fault, and exits with 1 if there
is one. Checks with an URL ask the real Prometheus there, which has scraped a daemon and a session."""

import functools
import json
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

RULES = pathlib.Path("deploy/prometheus/jigd.rules.yaml")
RULE_TESTS = pathlib.Path("tests/deploy/prometheus/rules.test.yaml")
RUNBOOK = pathlib.Path("docs/operate/runbook.md")
DASHBOARD = pathlib.Path("deploy/grafana/jigd.json")
METRIC = r"\b(?:jig|rpc|gen_ai|process)_[a-z0-9_]+|\bup\b|\bprobe_success\b"
VARIABLES = {"$job": "jigd", "$instance": ".*", "$__rate_interval": "1m"}


def ask(url, path, **parameters):
    query = urllib.parse.urlencode(parameters, doseq=True)
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{path}?{query}", timeout=30) as response:
            return json.load(response)["data"]
    except urllib.error.HTTPError as error:
        return {"error": json.load(error)["error"], "result": []}


def check_alerts():
    """Each alert has a unit test and a section of the runbook, and the other way round."""
    text = RULES.read_text()
    alerts = re.findall(r"- alert: (\w+)", text)
    links = re.findall(r"runbook_url: docs/operate/runbook\.md#(\w+)", text)
    if links != [alert.lower() for alert in alerts]:
        yield f"links {links} are not those of the alerts {alerts}"
    for name, found in (
        ("unit tests", re.findall(r'ALERTS\{alertname="(\w+)", alertstate="firing"\}$', RULE_TESTS.read_text(), re.MULTILINE)),
        ("sections", re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)),
    ):
        for alert in sorted(set(alerts) ^ set(found)):
            yield f"{alert} is not in both the rules and the {name}"


@functools.cache
def labels_of(url, metric):
    return {label for series in ask(url, "series", **{"match[]": metric}) for label in series}


def unknown_names(url, expression):
    """Metrics and labels of an expression that no series has."""
    metrics = set(re.findall(METRIC, re.sub(r"\{[^}]*\}|\b(?:by|on) \([a-z_, ]+\)", "", expression)))
    if not metrics:
        yield "no metric"
    labels = set()
    for metric in metrics:
        found = labels_of(url, metric)
        if not found:
            yield f"metric {metric}"
        labels |= found
        for matchers in re.findall(re.escape(metric) + r"\{([^}]*)\}", expression):
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
                if label not in found:
                    yield f"label {label} of {metric}"
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        for label in re.split(r",\s*", group):
            if label not in labels:
                yield f"label {label}"


def check_rules(url):
    """Prometheus evaluates each rule, and each names metrics and labels that exist."""
    count = 0
    for group in ask(url, "rules")["groups"]:
        for rule in group["rules"]:
            count += 1
            name = rule["name"]
            if rule["health"] != "ok":
                yield f"{name}: {rule['health']} {rule.get('lastError')}"
            if rule["labels"].get("severity") not in ("critical", "warning", "info"):
                yield f"{name} has the labels {rule['labels']}"
            if not {"summary", "description", "runbook_url"} <= rule["annotations"].keys():
                yield f"{name} has the annotations {rule['annotations']}"
            for unknown in unknown_names(url, rule["query"]):
                yield f"{name} names what no series has: {unknown}"
    if count != RULES.read_text().count("- alert: "):
        yield f"Prometheus has {count} rules"


def check_dashboard(url):
    """Each query has a result with the labels of its legend. Each metric of the daemon is on a panel."""
    text = DASHBOARD.read_text()
    panels = json.loads(text)["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            answer = ask(url, "query", query=expression)
            if not answer["result"]:
                yield f"{panel['title']}: {answer.get('error', 'no data')}: {expression}"
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for series in answer["result"][:1]:
                if not legend <= series["metric"].keys():
                    yield f"{panel['title']}: the legend {legend} of {series['metric']}"
    names = {series["__name__"] for series in ask(url, "series", **{"match[]": '{job="jigd"}'})}
    families = {re.sub(r"_(bucket|sum)$|(?<=seconds|._bytes)_count$", "", name) for name in names}
    for name in sorted(families):
        if re.match(METRIC, name) and name not in text:
            yield f"no panel shows {name}"


def check_variables(url):
    """The queries of variables have values."""
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
            if label not in labels_of(url, metric.replace("$job", "jigd")):
                yield f"{variable['name']} has no values"


def check_firing(url, alert, *words):
    """The alert fires soon, and its summary has the words."""
    for _ in range(150):
        for firing in ask(url, "alerts")["alerts"]:
            if firing["labels"]["alertname"] == alert and firing["state"] == "firing":
                summary = firing["annotations"]["summary"]
                print(summary)
                if not all(word in summary for word in words):
                    yield f"{words} are not in the summary"
                return
        time.sleep(0.2)
    yield f"{alert} does not fire: {ask(url, 'alerts')}"


def main():
    check, *arguments = sys.argv[1:]
    faults = list(globals()[f"check_{check}"](*arguments))
    print(*faults[:20], sep="\n")
    sys.exit(bool(faults))


main()
