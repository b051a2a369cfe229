#!/bin/sh
# Finds a Python to start train_gpu.py with; that one does the rest. Works from any folder and through symlinks.
self=$0
while [ -L "$self" ]; do
    target=$(readlink "$self")
    case $target in /*) self=$target ;; *) self=$(dirname "$self")/$target ;; esac
done
here=$(CDPATH='' cd -- "$(dirname -- "$self")" && pwd -P) || exit 1
# home.txt: where .venv is, if not here. An update that was cut off may have left only .venv.old and .venv.new.
home=$here
if [ -r "$here/.venv-setup/home.txt" ]; then IFS= read -r home <"$here/.venv-setup/home.txt"; fi
for python in "$home"/.venv/bin/python "$home"/.venv.old/bin/python "$home"/.venv.new/bin/python \
    "$here"/.venv-setup/python/cpython-3*/bin/python3 python3 python3.13 python3.12 python3.11 python; do
    # Run it: a name on the PATH may be a shim with nothing behind it. -I keeps foreign variables out.
    if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 6))' >/dev/null 2>&1; then
        exec "$python" -I -X utf8 "$here/train_gpu.py" "$@"
    fi
done
echo "Traindeck needs Python 3.11, 3.12 or 3.13; none was found. For example: sudo apt install python3 python3-venv" >&2
exit 1
