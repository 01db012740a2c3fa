"""Looks whether the documents' own examples have the parameters that the rendered tools say."""

import json
import pathlib
import sys
import tomllib

import jsonschema

folder = pathlib.Path(sys.argv[1])
problems = []
tried = 0

for path in map(pathlib.Path, sys.argv[2:]):
    tools = json.loads((folder / f"{path.stem}.json-schema.json").read_text())
    schemas = {tool["name"]: tool["input_schema"] for tool in tools}
    for group in tomllib.loads(path.read_text()).values():
        for name, scenario in group.items():
            # Others try what is no such example: numbers as texts, parameters that are not there.
            if not name.startswith("the_example") or "error" in scenario:
                continue
            tool, params = scenario.get("tool", group.get("tool")), json.loads(scenario["params"])
            tried += 1
            for error in jsonschema.Draft202012Validator(schemas[tool]).iter_errors(params):
                problems.append(f"{path.stem} {tool}: {name}: {error.message}")

print("\n".join(problems))
print(f"{tried} tried, {len(problems)} wrong")
sys.exit(not tried or bool(problems))
