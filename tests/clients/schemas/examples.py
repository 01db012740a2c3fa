"""Checks that the documents' own examples match the schemas of the rendered tools."""

import json
import pathlib
import sys
import tomllib

import jsonschema

directory = pathlib.Path(sys.argv[1])
problems = []
tried = 0


def expanded(value):
    """Expands a value of a scenario, as tests/seeds/matching.rs does."""
    match value:
        case {"$repeat": [text, times]}:
            return text * times
        case {"$lines": [first, last, line]}:
            return "".join(line.replace("{}", str(n)) + "\n" for n in range(first, last + 1))
        case {"$join": parts}:
            return "".join(map(expanded, parts))
        case dict():
            return {name: expanded(inner) for name, inner in value.items()}
        case list():
            return list(map(expanded, value))
    return value


for path in map(pathlib.Path, sys.argv[2:]):
    tools = json.loads((directory / f"{path.stem}.json-schema.json").read_text())
    schemas = {tool["name"]: tool["input_schema"] for tool in tools}
    for group in tomllib.loads(path.read_text()).values():
        for name, scenario in group.items():
            # Other scenarios test invalid parameters: numbers as strings, unknown names.
            if not name.startswith("the_example") or "error" in scenario:
                continue
            tool, params = scenario.get("tool", group.get("tool")), expanded(json.loads(scenario["params"]))
            tried += 1
            for error in jsonschema.Draft202012Validator(schemas[tool]).iter_errors(params):
                problems.append(f"{path.stem} {tool}: {name}: {error.message}")

print("\n".join(problems))
print(f"{tried} tried, {len(problems)} wrong")
sys.exit(not tried or bool(problems))
