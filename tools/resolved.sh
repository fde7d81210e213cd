#!/usr/bin/env bash
# Runs the tests with the oldest or the newest versions of the dependencies that pyproject.toml
# allows, as in a project that has no requirements.lock, in .venv-RESOLUTION. Uses the Python of
# .venv, or the one that PYTHON names.
#
# tools/resolved.sh lowest-direct|highest ARGUMENTS-OF-PYTEST
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v uv >/dev/null; then
  echo "tests of other versions need uv (https://docs.astral.sh/uv): pip install uv" >&2
  exit 1
fi

resolution=$1 venv=$PWD/.venv-$1
shift
[ -d "$venv" ] || uv venv --quiet --python "${PYTHON:-.venv/bin/python}" "$venv"
uv pip compile pyproject.toml --extra embedded --extra ui --resolution "$resolution" --upgrade \
  --quiet --python "$venv/bin/python" --output-file "$venv/constraints.txt"
VIRTUAL_ENV=$venv uv pip install --quiet --constraints "$venv/constraints.txt" \
  --editable '.[embedded,ui,dev]' pip

export VIRTUAL_ENV=$venv PATH="$venv/bin:$PATH" JAVA_HOME="$PWD/.venv/java-home"
python -m lakegc_assets.cli.kernels
exec python -m pytest "$@"
