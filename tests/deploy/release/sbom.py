"""Validates an SBOM against the schema of CycloneDX 1.5, and prints the number of its components."""

import json
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = open(sys.argv[1]).read()
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
if error:
    sys.exit(f"invalid: {error}")

components = json.loads(text)["components"]
without_digest = [c["name"] for c in components if not c.get("hashes")]
if without_digest:
    sys.exit(f"without a digest: {without_digest}")
print(f"valid, {len(components)} components")
