# Sourced by the scripts `run` of the folders beside this file. They run Python programs on the
# emulated libraries.
#
# Sets `here` to the script's folder, `root` to the checkout's, `target` to cargo's, and `python` to
# the interpreter. Fails with a message if something is missing.

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
python=${PYTHON:-python3}

fail() {
    echo "$(basename "$here"): $1" >&2
    exit 1
}

# build PACKAGE...: builds packages of the workspace with the profile of the tests. With BUILT=1
# nothing is built: cargo chooses the features of dependencies by the packages that it builds
# together, so each other set of packages compiles most of them again.
build() {
    [ "${BUILT:-}" != 1 ] || return 0
    # shellcheck disable=SC2046
    cargo build --quiet --manifest-path "$root/Cargo.toml" $(printf ' --package %s' "$@")
}

# need_python VERSION: fails without an interpreter. VERSION is the oldest version that is enough.
need_python() {
    command -v "$python" >/dev/null || fail "no $python; install Python $1 or newer, or set PYTHON"
}

# make_venv PINS FOLDER: makes a virtual environment with the packages of PINS, unless it is there.
make_venv() {
    # A copy of the pins inside marks an environment that is complete and current.
    if ! cmp -s "$1" "$2/requirements.txt"; then
        rm -rf "$2"
        "$python" -m venv "$2" || fail "$python cannot make a virtual environment; install its venv module"
        "$2/bin/python" -m pip install --quiet --disable-pip-version-check \
            --no-compile --only-binary=:all: --requirement "$1" ||
            fail "pip cannot install $1; it needs its package index, and wheels for $("$python" --version)"
        cp "$1" "$2/requirements.txt"
    fi
}
