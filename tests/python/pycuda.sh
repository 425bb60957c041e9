# Sourced by `run --all`. Installs PyCUDA into its environment, built from the source.
#
# PyCUDA has no wheels, and needs a CUDA toolkit to build. The headers of NVIDIA's wheels are enough
# for it, and it links with the emulated driver. Leaves out cuRAND: the emulated driver lacks it.

pins=$here/requirements-pycuda.txt
# A wheel is for one version of Python.
built=$target/pycuda-$("$venv/bin/python" -c 'import sys; print(sys.implementation.cache_tag)')
# As in make_venv, a copy of the pins marks a wheel that is complete and current.
if ! cmp -s "$pins" "$built/requirements.txt"; then
    echo "PyCUDA is built from its source, for some minutes, with its output in $built/log"
    rm -rf "$built"
    mkdir -p "$built/source" "$built/link"
    ln -s "$target/debug/libcuda_emulated.so" "$built/link/libcuda.so"
    "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation --no-binary=:all: --requirement "$pins" --dest "$built" ||
        fail "pip cannot download $pins; it needs its package index"
    tar -xzf "$built"/pycuda-*.tar.gz -C "$built/source" --strip-components=1
    headers=$("$venv/bin/python" -c 'import nvidia.cu13; print(nvidia.cu13.__path__[0])')/include
    cat >"$built/source/siteconf.py" <<END
CUDA_ENABLE_CURAND = False
CUDA_INC_DIR = ["$headers"]
CUDADRV_LIB_DIR = ["$built/link"]
END
    # Its speed is not tested, and without optimization it is built in half the time.
    CFLAGS="-O0 -w" "$venv/bin/python" -m pip wheel --disable-pip-version-check --no-deps \
        --no-build-isolation --wheel-dir "$built" "$built/source" >"$built/log" 2>&1 ||
        fail "PyCUDA cannot be built; see $built/log"
    cp "$pins" "$built/requirements.txt"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    "$built"/pycuda-*.whl || fail "PyCUDA cannot be installed"
