#!/usr/bin/env bash
# Runs the tests with the oldest versions of all dependencies that pyproject.toml names, in
# .venv-lowest, as in a project that has pinned older ones than requirements.lock.
#
# tools/lowest.sh WORKERS
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v uv >/dev/null; then
  echo "make test-lowest needs uv (https://docs.astral.sh/uv): pip install uv" >&2
  exit 1
fi

venv=$PWD/.venv-lowest
[ -d "$venv" ] || uv venv --quiet --python .venv/bin/python "$venv"
uv pip compile pyproject.toml --extra embedded --extra ui --resolution lowest-direct --quiet \
  --python "$venv/bin/python" --output-file "$venv/constraints.txt"
VIRTUAL_ENV=$venv uv pip install --quiet --constraints "$venv/constraints.txt" \
  --editable '.[embedded,ui,dev]' pip

export VIRTUAL_ENV=$venv PATH="$venv/bin:$PATH" JAVA_HOME="$PWD/.venv/java-home"
python -m lakegc_assets.cli.kernels
# Old versions warn about deprecated features, and their pytest plug-ins fail.
exec python -m pytest -n "$1" --dist loadscope -p no:anyio -o filterwarnings=default
