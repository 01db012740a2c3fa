"""Checks of Kubernetes manifests and of the chart's values.

check.py validate CRDS FILE...      every object satisfies the schema of its kind, in the oldest and the newest supported Kubernetes
check.py same CHART KUSTOMIZE NAME  the chart and the overlay make the same pods of the workload NAME, with the same jigd.toml
check.py data NAME KEY FILE         prints a value of a ConfigMap
check.py table CHART                prints the table of values for the chart's README
"""

import collections
import json
import pathlib
import sys
import tomllib

import jsonschema
import kubernetes_validate
import yaml

# The first with user namespaces for pods by default, and the newest.
KUBERNETES_VERSIONS = ["1.33", "1.37"]
# Kinds of the Prometheus operator, whose schemas no package registry has.
WITHOUT_SCHEMA = {"PodMonitor", "PrometheusRule"}


def objects(file):
    text = sys.stdin.read() if file == "-" else pathlib.Path(file).read_text()
    return [found for found in yaml.safe_load_all(text) if found]


def closed(schema):
    """The schema, with unknown fields as errors."""
    if isinstance(schema, dict):
        schema = {key: closed(value) for key, value in schema.items()}
        keeps_unknown = schema.get("x-kubernetes-preserve-unknown-fields")
        if isinstance(schema.get("properties"), dict) and "type" in schema and not keeps_unknown:
            schema.setdefault("additionalProperties", False)
        if schema.pop("x-kubernetes-int-or-string", False):
            schema.pop("type", None)
    elif isinstance(schema, list):
        schema = [closed(value) for value in schema]
    return schema


def custom_schemas(directory):
    schemas = {}
    for file in pathlib.Path(directory).glob("*.yaml"):
        for definition in objects(file):
            spec = definition["spec"]
            for version in spec["versions"]:
                schema = closed(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                schemas[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return schemas


def validate(crds, *files):
    schemas = custom_schemas(crds)
    kinds = collections.Counter()
    for file in files:
        for found in objects(file):
            kind, name = found["kind"], found["metadata"].get("name", "")
            try:
                if schema := schemas.get((found["apiVersion"], kind)):
                    jsonschema.validate(found, schema)
                elif kind not in WITHOUT_SCHEMA:
                    for version in KUBERNETES_VERSIONS:
                        kubernetes_validate.validate(found, version, strict=True)
            except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
                path = ".".join(map(str, error.path))
                sys.exit(f"{file}: {kind} {name}: {path}: {error.message}")
            except kubernetes_validate.SchemaNotFoundError as error:
                sys.exit(f"{file}: {kind} {name}: no schema: {error}")
            kinds[kind] += 1
    print("valid:", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))


def pod_of(found):
    spec = found["spec"]
    return spec.get("podTemplate", spec.get("template"))["spec"]


def configuration(all_objects, pod, container):
    """Data of the ConfigMaps that the container mounts or takes as environment."""
    names = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
    files = [found["data"]["jigd.toml"] for found in all_objects if found["kind"] == "ConfigMap" and found["metadata"]["name"] in names and "jigd.toml" in found["data"]]
    sources = [source["configMapRef"]["name"] for source in container.pop("envFrom", [])]
    environment = {variable["name"]: variable for variable in container.get("env", [])}
    for found in all_objects:
        if found["kind"] == "ConfigMap" and found["metadata"]["name"] in sources:
            environment |= {name: {"name": name, "value": value} for name, value in found["data"].items()}
    container["env"] = environment
    return [tomllib.loads(text) for text in files]


def normal(file, name):
    """What counts of a workload: the pod without images and names of objects, claims, and jigd.toml."""
    all_objects = objects(file)
    (found,) = [found for found in all_objects if found["kind"] in ("StatefulSet", "Deployment") and found["metadata"]["name"] == name]
    pod = pod_of(found)
    containers = pod.get("initContainers", []) + pod["containers"]
    files = [configuration(all_objects, pod, container) for container in containers if container["name"] == "jigd"]
    for container in containers:
        container.pop("image")
        container.pop("imagePullPolicy", None)
        container["volumeMounts"].sort(key=lambda mount: mount["mountPath"])
        container.get("ports", []).sort(key=lambda port: port["name"])
    pod.pop("serviceAccountName", None)
    for volume in pod["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["name"] = "any"
    pod["volumes"].sort(key=lambda volume: volume["name"])
    for constraint in pod.get("topologySpreadConstraints", []):
        constraint["labelSelector"] = "any"
    spec = found["spec"]
    claims = {claim["metadata"]["name"]: claim["spec"] for claim in spec.get("volumeClaimTemplates", [])}
    return {"pod": pod, "claims": claims, "jigd.toml": files, "replicas": spec.get("replicas", 1), "order": spec.get("podManagementPolicy")}


def differences(one, other, path=""):
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other)):
            yield from differences(*pair, f"{path}[{index}]")
    elif one != other:
        yield f"{path}: {one!r} in the chart, {other!r} in the overlay"


def same(chart, overlay, name):
    if found := list(differences(normal(chart, name), normal(overlay, name))):
        sys.exit("\n".join(found[:5]))
    print("the same")


def data(name, key, file):
    (found,) = [found for found in objects(file) if found["kind"] == "ConfigMap" and found["metadata"]["name"] == name]
    print(found["data"][key], end="")


def rows(schema, values, path=""):
    for key, child in schema["properties"].items():
        if child.get("properties"):
            yield from rows(child, values.get(key, {}), f"{path}{key}.")
        elif key in values:
            default = values[key]
            if isinstance(default, str) and "\n" in default:
                text = "see values.yaml"
            else:
                text = f"`{json.dumps(default)}`"
            kind = ", ".join(f"`{value}`" for value in child["enum"]) if "enum" in child else child["type"]
            kind = " or ".join(kind) if isinstance(kind, list) else kind
            yield f"| `{path}{key}` | {kind} | {text} | {child['description']} |"


def keys(values, schema):
    """Paths of the values, down to where the schema lists no more properties."""
    for key, value in values.items():
        child = schema["properties"][key]
        yield from ((f"{key}.{rest}" for rest in keys(value, child)) if child.get("properties") else [key])


def table(chart):
    schema = json.loads((pathlib.Path(chart) / "values.schema.json").read_text())
    values = yaml.safe_load((pathlib.Path(chart) / "values.yaml").read_text())
    found = list(rows(schema, values))
    assert len(found) == len(list(keys(values, schema))), "values.yaml and values.schema.json have different keys"
    print("| value | type | default | meaning |\n|---|---|---|---|")
    print("\n".join(found))


COMMANDS = {"validate": validate, "same": same, "data": data, "table": table}
COMMANDS[sys.argv[1]](*sys.argv[2:])
