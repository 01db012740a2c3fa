"""Checks ScaledObjects of KEDA: the parameters of their triggers, and that they fit the daemons that they scale.

keda.py MODULE TOML PAGE FILE

MODULE is the source of KEDA, whose scalers list their parameters. TOML is jigd.toml. PAGE lists the metrics of the daemon.
"""

import pathlib
import re
import sys
import tomllib

import yaml

SCALERS = {"nats-jetstream": "nats_jetstream_scaler.go", "prometheus": "prometheus_scaler.go"}
# Share of the places that are in use when the fleet has the right size.
USED_PLACES = 0.8


def parameters(module, kind):
    """Names of a scaler's parameters, and whether each is required. KEDA reads them from tags of a struct."""
    source = (pathlib.Path(module) / "pkg/scalers" / SCALERS[kind]).read_text()
    found = {}
    for tag in re.findall(r'`keda:"([^"]*)"`', source):
        options = [option.strip() for option in tag.split(",")]
        names = [option.removeprefix("name=") for option in options if option.startswith("name=")]
        is_optional = any(option == "optional" or option.startswith("default=") for option in options)
        found |= {name: not is_optional for name in names}
    assert len(found) > 5, f"{kind}: the source of KEDA has another form"
    return found


def metric_names(page):
    """Names in Prometheus of the metrics that the page lists. Counters have the suffix `_total`, and gauges none."""
    units = {"s": "_seconds", "By": "_bytes"}
    for name, kind, unit in re.findall(r"^\| `([a-z_.]+)` \| ([a-z-]+(?: counter)?) \| `([^`]+)` \|", page, re.MULTILINE):
        suffix = units.get(unit, "") + ("_total" if kind == "counter" else "")
        yield name.replace(".", "_") + suffix


def problems(module, toml, page, scaled):
    fleet = tomllib.loads(toml)["fleet"]
    (queue,) = fleet["queues"]
    target = USED_PLACES * queue["places"]
    spec = scaled["spec"]
    modifiers = spec.get("advanced", {}).get("scalingModifiers")
    names = [trigger.get("name") for trigger in spec["triggers"]]

    for trigger in spec["triggers"]:
        kind, metadata = trigger["type"], trigger["metadata"]
        known = parameters(module, kind)
        yield from (f"{kind}: no parameter {name!r}" for name in metadata if name not in known)
        yield from (f"{kind}: needs {name!r}" for name, is_required in known.items() if is_required and name not in metadata)
        yield from (f"{kind}: {name} is no text" for name, value in metadata.items() if not isinstance(value, str))
        if kind == "prometheus":
            if float(metadata["threshold"]) != target:
                yield f"the threshold is not {target:g}, {USED_PLACES:.0%} of the places"
            exported = set(metric_names(page))
            yield from (f"no metric {name!r}" for name in re.findall(r"\bjig_[a-z_]+(?=\{)", metadata["query"]) if name not in exported)
            yield from (f"no queue {name!r}" for name in re.findall(r'jig_fleet_queue="([^"]*)"', metadata["query"]) if name != queue["name"])
            if f"sum({queue['places']} - " not in metadata["query"]:
                yield "the query has other places than the daemons"

    streams = {trigger["metadata"].get("stream") for trigger in spec["triggers"] if trigger["type"] == "nats-jetstream"}
    if streams:
        if streams != {fleet.get("stream", "JIG_JOBS")}:
            yield f"the stream of the daemons is not {streams}"
        consumers = {trigger["metadata"]["consumer"] for trigger in spec["triggers"]}
        wanted = {queue["name"], *(f"{queue['name']}@{workspace}" for workspace in queue["workspaces"])}
        if consumers != wanted:
            yield f"the consumers of the daemons are {sorted(wanted)}, not {sorted(consumers)}"
        if re.split(r"\s*\+\s*", modifiers["formula"]) != names:
            yield "the formula is not the sum of all triggers"
        if float(modifiers["target"]) != target:
            yield f"the target is not {target:g}, {USED_PLACES:.0%} of the places"


def main():
    module, toml, page, file = sys.argv[1:]
    arguments = module, pathlib.Path(toml).read_text(), pathlib.Path(page).read_text()
    objects = [found for found in yaml.safe_load_all(pathlib.Path(file).read_text()) if found and found["kind"] == "ScaledObject"]
    assert len(objects) == 1, "one ScaledObject for a workload"
    if found := list(problems(*arguments, objects[0])):
        sys.exit("\n".join(found))
    print("fits the daemons")


main()
