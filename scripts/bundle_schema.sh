#!/usr/bin/env bash
# Hold databricks.yml and what it includes against the schema of Databricks' CLI, and those of a project.
#
# Usage: scripts/bundle_schema.sh CHECK_JSONSCHEMA [PROJECT_DIR]
# The schema's licence lets us use it and not pass it on: it is fetched, never committed. Exit 4
# where it cannot be had.
set -euo pipefail
shopt -s globstar nullglob
cd "$(dirname "$0")/.."

module=github.com/databricks/cli@v1.12.1
sum=h1:AEmFRA5foGObnxzgbk/1392DS+9dNsQWUY3sdZ1Reeo=

if ! command -v go >/dev/null; then
  echo "bundle: the schema was not checked: it comes in a Go module. Install Go 1.21 or newer." >&2
  exit 4
fi
if ! answer=$(cd "$(mktemp -d)" && go mod download -json "$module" 2>&1); then
  printf 'bundle: the schema was not checked: %s cannot be fetched.\n%s\n' "$module" "$answer" >&2
  exit 4
fi
field() { sed -n "s/^[[:space:]]*\"$1\": \"\(.*\)\",\{0,1\}$/\1/p" <<<"$answer"; }
if [ "$(field Sum)" != "$sum" ]; then
  echo "bundle: $module is not what it was: $(field Sum), pinned is $sum" >&2
  exit 3
fi
files=(databricks.yml resources/*.yml lib/tidelake/cli/skeleton/files/resources/standard/*.yml)
if [ $# -gt 1 ]; then
  files+=("$2/databricks.yml" "$2"/resources/**/*.yml)
fi
"$1" --schemafile "$(field Dir)/bundle/schema/jsonschema.json" "${files[@]}"
