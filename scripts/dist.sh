#!/usr/bin/env bash
# Build wheel, sdist, bill of materials and hashes into dist/.
#
# Usage: scripts/dist.sh BIN_OF_THE_RELEASE_TOOLS
# The commit's time stands in every archive, so that anybody gets the same bytes from it.
set -euo pipefail
tools=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  if [ -n "$(git status --porcelain)" ]; then
    echo "dist: the folder holds changes that are in no commit; they go into the archives." >&2
  fi
fi
export SOURCE_DATE_EPOCH
# An archive keeps the modes of files, which are the builder's.
umask 022
rm -rf dist
"$tools/python" -m build --no-isolation --outdir dist .
name=$(basename dist/*.whl -py3-none-any.whl)
mkdir -p build
# It cannot know that the whole hangs on the package: sbom.py says so.
PYTHONWARNINGS=ignore "$tools/cyclonedx-py" requirements --pyproject pyproject.toml --output-reproducible \
  --output-format JSON --output-file build/python.cdx.json requirements-runtime.lock
"$tools/python" scripts/sbom.py build/python.cdx.json "${name#tidelake-}" >"dist/$name.cdx.json"
(cd dist && sha256sum -- * >SHA256SUMS)
cat dist/SHA256SUMS
