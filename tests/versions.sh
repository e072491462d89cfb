#!/usr/bin/env bash
# versions.sh PYTHON TORCH: the library's tests in an environment of its own with these versions.
# A version of Python that this machine does not have is skipped with a message.
set -euo pipefail
python=$1 torch=$2
command -v "python$python" >/dev/null || { echo "Python $python is not on this machine: skipped"; exit 0; }
folder=.venv-versions/python$python-torch$torch
if [ ! -e "$folder/installed" ]; then
  "python$python" -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check "torch==$torch" pytest hypothesis scipy numpy
  "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --editable .
  touch "$folder/installed"
fi
echo "Python $python, torch $torch"
"$folder/bin/python" -m pytest -q -m "not gpu and not slow" tests
