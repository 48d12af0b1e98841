# Print the first of these Pythons that can make virtual environments for kafkagroup:
#
#     sh tests/usable_python.sh PYTHON ...
#
# each a command, or a version such as 3.12, which may be on PATH or in ~/.pyenv. Only running a Python
# tells: pyenv's shims answer to the names of Pythons that are switched off, and Debian's own Python
# may lack ensurepip.

set -eu
program='import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'

for named in "$@"; do
  case $named in
    [0-9]*) commands=$(echo "python$named" "$HOME/.pyenv/versions/$named".*/bin/python) ;;
    *) commands=$named ;;
  esac
  for python in $commands; do
    if "$python" -c "$program" >/dev/null 2>&1; then
      echo "$python"
      exit
    fi
  done
done
echo "kafkagroup needs Python 3.11 or newer with venv and ensurepip (Debian: python3-venv);" \
  "looked for $*, on PATH and in ~/.pyenv. PYTHON=/path/to/python names another." >&2
exit 1
