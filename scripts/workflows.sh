#!/usr/bin/env bash
# Lint the workflows: what they mean (actionlint) and what they let in (zizmor).
#
# Usage: scripts/workflows.sh ZIZMOR
set -euo pipefail
cd "$(dirname "$0")/.."

"$1" --offline --no-progress --persona pedantic .github
if ! command -v go >/dev/null; then
  echo "workflows: actionlint did not run: it is a Go program. Install Go 1.21 or newer." >&2
  exit 4
fi
go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
