#!/usr/bin/env bash
# Makes .venv ready: the pinned Python packages, and .venv/java-home, the Java that Spark runs on;
# and an archive in the user's cache folder with which Spark starts fast. `tools/setup.sh browser`
# looks for Chromium only, which the tests of the interface need.
#
# Prints nothing if nothing is missing. Installs missing system packages with the system's package
# manager if that is allowed; otherwise one sentence says what to install.
set -euo pipefail
cd "$(dirname "$0")/.."

oldest_python=10 newest_python=14 # the minor versions that requirements.lock has wheels for
java_versions="17 21 25"          # those that Spark 4 runs on

fail() {
  echo "$*" >&2
  exit 1
}

# Run a command as root: directly, or with a sudo that asks for no password.
as_root() {
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 1
    sudo=(sudo -n)
  fi
  echo "$*" >&2
  "${sudo[@]}" "$@" >&2
}

# Install the first package of the given ones that this system has.
install_one_of() {
  local package
  if command -v apt-get >/dev/null; then
    as_root apt-get update -qq || true # some list may be out of reach, and not be needed
    for package; do
      as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$package" && return
    done
  elif command -v dnf >/dev/null; then
    for package; do as_root dnf install -y -q "$package" && return; done
  elif command -v zypper >/dev/null; then
    for package; do as_root zypper --non-interactive --quiet install "$package" && return; done
  elif command -v pacman >/dev/null; then
    for package; do as_root pacman -S --noconfirm --needed "$package" && return; done
  fi
  return 1
}

python_fits() {
  "$1" -c "import sys; sys.exit(not (3, $oldest_python) <= sys.version_info[:2] <= (3, $newest_python))" \
    >/dev/null 2>&1
}

find_python() {
  local minor python without_venv=""
  for python in ${PYTHON:-} python3 $(for ((minor = newest_python; minor >= oldest_python; minor--)); do echo "python3.$minor"; done); do
    if python_fits "$python"; then
      if "$python" -c "import ensurepip, venv" 2>/dev/null; then
        echo "$python"
        return
      fi
      without_venv=${without_venv:-$python}
    fi
  done
  [ -n "$without_venv" ] ||
    fail "No Python 3.$oldest_python to 3.$newest_python was found: install one, or name it: make PYTHON=/path/to/python3 ..."
  python=$without_venv
  minor=$("$python" -c "import sys; print(sys.version_info[1])")
  if ! { install_one_of "python3.$minor-venv" && "$python" -c "import ensurepip, venv" 2>/dev/null; }; then
    fail "$python lacks its venv module: install it (Debian, Ubuntu: apt-get install python3.$minor-venv), then run this again."
  fi
  echo "$python"
}

set_up_python() {
  local stamp python pip
  stamp="$PWD $(cat pyproject.toml requirements.lock | sha256sum)"
  if [ "$(cat .venv/set-up 2>/dev/null)" = "$stamp" ] && .venv/bin/python -c "" 2>/dev/null; then
    return
  fi
  # An environment does not survive a move of its folder.
  if [ -e .venv/set-up ] && ! grep -qsF "$PWD " .venv/set-up || ! python_fits .venv/bin/python; then
    python=$(find_python)
    rm -rf .venv
    "$python" -m venv .venv
  fi
  .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
  echo "Installing the packages of requirements.lock into .venv; the first time takes some minutes" >&2
  rm -f .venv/set-up
  pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet install)
  # First pip and setuptools: Spark comes as source, and their versions decide how it is built.
  sed -n '/^\(pip\|setuptools\)==/,/[^\\]$/p' requirements.lock >.venv/first.lock
  "${pip[@]}" --no-deps --require-hashes --requirement .venv/first.lock
  "${pip[@]}" --no-deps --require-hashes --no-build-isolation --requirement requirements.lock
  "${pip[@]}" --quiet --no-deps --no-build-isolation --editable .
  echo "$stamp" >.venv/set-up
}

# True if $1 is the home of a Java that Spark runs on.
java_fits() {
  local version
  [ -n "$1" ] && version=$("$1/bin/java" -version 2>&1) || return 1
  version=${version#*\"}
  case " $java_versions " in *" ${version%%[.\"+-]*} "*) return 0 ;; esac
  return 1
}

find_java() {
  local home java
  if java=$(command -v java); then
    java=$(readlink -f "$java")
    home=${java%/bin/java}
    if java_fits "$home"; then
      echo "$home"
      return
    fi
  fi
  for home in /usr/lib/jvm/*; do
    if java_fits "$home"; then
      echo "$home"
      return
    fi
  done
  return 1
}

set_up_java() {
  local home
  if java_fits "${JAVA_HOME:-}"; then
    home=$JAVA_HOME
  elif java_fits .venv/java-home; then
    return
  elif ! home=$(find_java); then
    install_one_of openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless \
      java-21-openjdk-headless java-17-openjdk-headless java-25-openjdk-headless \
      jre21-openjdk-headless && home=$(find_java) ||
      fail "Spark needs Java 17, 21 or 25: install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME, then run this again."
  fi
  ln -sfn "$(readlink -f "$home")" .venv/java-home
}

# numba keeps compiled code beside the modules, for the processor that it was compiled on.
set_up_kernels() {
  local stamp
  stamp="$(cat $(grep -rl --include=*.py 'import numba' lakegc_assets | sort) \
    lakegc_assets/cli/kernels.py | sha256sum)"
  [ "$(cat .venv/kernels 2>/dev/null)" != "$stamp" ] || return 0
  echo "Compiling the readers of lakeFS's ranges" >&2
  ! .venv/bin/python -m lakegc_assets.cli.kernels || echo "$stamp" >.venv/kernels
}

# The names are those that lakegc_assets_tests/ui/browser.py looks for.
set_up_browser() {
  local name
  for name in ${CHROMIUM:-} chromium chromium-browser google-chrome; do
    ! command -v "$name" >/dev/null || return 0
  done
  install_one_of chromium chromium-browser && { command -v chromium || command -v chromium-browser; } >/dev/null ||
    fail "The tests of the interface need Chromium: install it (Debian: apt-get install chromium) or name it: CHROMIUM=/path/to/chromium, then run this again."
}

if [ "${1:-}" = browser ]; then
  set_up_browser
  exit
fi
set_up_python
set_up_java
JAVA_HOME="$PWD/.venv/java-home" .venv/bin/python -m lakegc_assets.engine & # beside the kernels
set_up_kernels
wait $! || true # Spark starts without the archive, too
