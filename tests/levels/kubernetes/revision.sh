#!/usr/bin/env bash
# Time and revision of the images of the tests.
set -euo pipefail

export SOURCE_DATE_EPOCH=1764028800 REVISION=test
