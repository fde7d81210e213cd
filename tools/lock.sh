#!/usr/bin/env bash
# Pins every dependency of pyproject.toml, with hashes, in requirements.lock.
#
# Existing pins stay as they are; --upgrade and the like are passed on to uv.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v uv >/dev/null; then
  echo "make lock needs uv (https://docs.astral.sh/uv), and only make lock does: pip install uv" >&2
  exit 1
fi

uv pip compile pyproject.toml --all-extras --universal --python-version 3.10 \
  --generate-hashes --no-annotate --custom-compile-command "make lock" --quiet \
  --output-file requirements.lock "$@"
