"""Looks whether the documents' own examples have the parameters that the rendered tools say."""

import json
import pathlib
import sys
import tomllib

import jsonschema

folder = pathlib.Path(sys.argv[1])
problems = []
tried = 0


def expanded(value):
    """What a value of a scenario stands for, as tests/seeds/matching.rs reads it."""
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
    tools = json.loads((folder / f"{path.stem}.json-schema.json").read_text())
    schemas = {tool["name"]: tool["input_schema"] for tool in tools}
    for group in tomllib.loads(path.read_text()).values():
        for name, scenario in group.items():
            # Others try what is no such example: numbers as texts, parameters that are not there.
            if not name.startswith("the_example") or "error" in scenario:
                continue
            tool, params = scenario.get("tool", group.get("tool")), expanded(json.loads(scenario["params"]))
            tried += 1
            for error in jsonschema.Draft202012Validator(schemas[tool]).iter_errors(params):
                problems.append(f"{path.stem} {tool}: {name}: {error.message}")

print("\n".join(problems))
print(f"{tried} tried, {len(problems)} wrong")
sys.exit(not tried or bool(problems))
