#!/usr/bin/env python3
"""Compares names of attributes and metrics with the published semantic conventions.

Usage: compare.py MODEL SEMCONV_RS RESOURCE_RS TELEMETRY_MD

MODEL has the packages that tests/deploy/parts/semconv.sh installs. The names are those in the two
sources, and the metrics those in the table of the page, which a test compares with the daemon.
"""

import re
import sys
from pathlib import Path

MOVED = "Moved to the [OpenTelemetry GenAI semantic conventions repository]"


def published_names(model):
    """The names of the model: the text of their deprecation, or None."""
    names = {}
    for file in sorted((model / "package/dist").glob("*_attributes.d.mts")) + sorted(
        (model / "package/dist").glob("*_metrics.d.mts")
    ):
        text = file.read_text()
        comment = r"/\*\*((?:(?!\*/).)*)\*/\ndeclare const (?:ATTR|METRIC)_\w+: \"([^\"]+)\";"
        for match in re.finditer(comment, text, re.S):
            deprecated = re.search(r"@deprecated (.*)", match[1])
            names[match[2]] = deprecated[1] if deprecated else None
    if len(names) < 1000:
        sys.exit(f"{model}: only {len(names)} names were read")
    return names


def published_instruments(model):
    """The kinds and units of the model's metrics."""
    instruments = {}
    for file in (model / "python/opentelemetry/semconv/_incubating/metrics").glob("*.py"):
        text = file.read_text()
        for match in re.finditer(r'^\w+: Final = "([^"]+)"\n"""\n(.*?)"""', text, re.S | re.M):
            found = re.search(r"Instrument: (\S+)\nUnit: (\S+)", match[2])
            if found:
                instruments[match[1]] = (found[1], found[2])
    return instruments


def genai_instruments(model):
    """The kinds and units of metrics of the newest GenAI conventions."""
    text = (model / "python/opentelemetry/util/genai/_instruments.py").read_text()
    names = dict(re.findall(r'^(_GEN_AI_\w+): Final = "([^"]+)"$', text, re.M))
    created = re.findall(r'meter\.create_(\w+)\(\s+name=(\w+),.*?unit="([^"]+)"', text, re.S)
    return {names[name]: (kind, unit) for kind, name, unit in created if name in names}


def own_attributes(sources):
    """The attributes in sources that are not the project's own."""
    names = set()
    for source in sources:
        code = source.read_text().split("#[cfg(test)]")[0]
        names |= set(re.findall(r'"([a-z0-9_]+(?:\.[a-z0-9_]+)+)"', code))
    return {name for name in names if not name.startswith("jig.")}


def own_metrics(page):
    """The documented metrics that are not the project's own: kind and unit."""
    header = "| metric | kind | unit | attributes | content |"
    rows = page.read_text().split(header)[1].split("\n\n")[0]
    cells = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| `([^`]+)` \|", rows, re.M)
    kinds = {"up-down counter": "updowncounter"}
    metrics = {name: (kinds.get(kind, kind), unit) for name, kind, unit in cells}
    return {name: spec for name, spec in metrics.items() if not name.startswith("jig.")}


def main():
    model, semconv, resource, page = map(Path, sys.argv[1:])
    published, genai = published_names(model), genai_instruments(model)
    instruments = {**published_instruments(model), **genai}
    attributes, metrics = own_attributes([semconv, resource]), own_metrics(page)
    problems = []
    for name in sorted(attributes | set(metrics)):
        if name not in published and name not in genai:
            problems.append(f"{name}: not in the model")
        elif (reason := published.get(name)) and not reason.startswith(MOVED):
            problems.append(f"{name}: deprecated: {reason}")
    for name, spec in sorted(metrics.items()):
        expected = instruments.get(name)
        if spec != expected:
            told = "none" if expected is None else " in ".join(expected)
            problems.append(f"{name}: {' in '.join(spec)}, but the model has {told}")
    if len(attributes) < 25 or len(metrics) < 5:
        problems.append(f"only {len(attributes)} attributes and {len(metrics)} metrics were read")

    print(*problems, f"{len(attributes)} attributes and {len(metrics)} metrics", sep="\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
