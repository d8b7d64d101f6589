#!/usr/bin/env bash
# The README's commands on a bare machine: a root of nothing but Debian, python3-venv, make and git, and a clean
# clone of the commit that is checked out here.
#
#   sudo lab/tools/bare_machine.sh                    make serve and a call, then make test
#   sudo lab/tools/bare_machine.sh serve check        make serve and a call, then make check
#   sudo lab/tools/bare_machine.sh serve 'make test ARGS=tests/audio'
#
#   SUITE=bookworm   the release of Debian
#   SOURCES=FILE     its package sources; /etc/apt's own where this machine runs the same release
#   WORK=FOLDER      where the root is made, and removed again; some 10 GB for make test
#
# It needs root and mmdebstrap. pip's configuration, proxies and certificates of this machine hold in the root too:
# its files are copied to /host there, its folders are mounted read-only.
set -euo pipefail

SUITE=${SUITE:-bookworm}
CHECKOUT=$(cd "$(dirname "$0")/../.." && pwd)
STEPS=("$@")
[ $# -gt 0 ] || STEPS=(serve test)

if [ "${1:-}" != --inside-namespace ]; then
  [ "$(id -u)" = 0 ] || { echo "lab/tools/bare_machine.sh makes a root with chroot and mounts: type sudo $0"; exit 1; }
  command -v mmdebstrap >/dev/null || { echo "mmdebstrap is needed (Debian: apt-get install mmdebstrap)"; exit 1; }
  # Mounts and processes end with the script, whatever happens.
  WORK=$(mktemp -d "${WORK:-${TMPDIR:-/tmp}}/bare-machine.XXXXXX")
  trap 'rm -rf --one-file-system "$WORK"' EXIT
  WORK=$WORK unshare --mount --pid --fork --kill-child --propagation private "$0" --inside-namespace "${STEPS[@]}"
  exit
fi
STEPS=("${STEPS[@]:1}")
ROOT=$WORK/root

sources() {
  if [ -n "${SOURCES:-}" ]; then
    echo "$SOURCES"
  elif grep -qs "VERSION_CODENAME=$SUITE" /etc/os-release; then
    compgen -G '/etc/apt/sources.list.d/debian.sources' || compgen -G '/etc/apt/sources.list' || true
  fi
}

# lend TEXT: its words, with every path of this machine lent to the root and named by its place there
lend() {
  local word path words=()
  for word in $1; do
    path=${word#file://}
    if [[ $path == /* && -e $path ]]; then
      [ "$path" = "$word" ] || path=$(dirname "$path") # an index refers to the files beside it
      lend_path "$path"
      word=${word/"$path"//host$path}
    fi
    words+=("$word")
  done
  echo "${words[*]}"
}

lend_path() {
  local place=$ROOT/host$1
  [ ! -e "$place" ] || return 0
  if [ -d "$1" ]; then
    mkdir -p "$place"
    mount --bind -o ro "$1" "$place"
  else
    mkdir -p "$(dirname "$place")"
    cp -L "$1" "$place"
  fi
}

lend_pip() {
  local pip key value
  for pip in pip pip3 "python3 -m pip"; do $pip --version >/dev/null 2>&1 && break; done
  echo "[global]" >"$ROOT/etc/pip.conf"
  # In pip's own order: what comes later wins.
  $pip config list 2>/dev/null | tac | awk -F= '{key = $1; sub(/.*\./, "", key)} !(key in seen) {seen[key]; print}' |
    while IFS='=' read -r key value; do
      value=${value#[\'\"]}
      echo "${key##*.} = $(lend "${value%[\'\"]}")"
    done >>"$ROOT/etc/pip.conf"
}

VARIABLES=(HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
lend_environment() {
  local name
  for name in SSL_CERT_FILE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS npm_config_registry \
    http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!name:-}" ] || VARIABLES+=("$name=$(lend "${!name}")")
  done
}

inside() { chroot "$ROOT" /usr/bin/env -i "${VARIABLES[@]}" bash -euo pipefail -c "cd /srv/antiphon && $1"; }

# Sets up and starts the server, calls it, and says how long that took and how large it is.
SERVE='
port=$(python3 -c "import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); print(s.getsockname()[1])")
start=$SECONDS
make serve ARGS="--port $port" & make=$!
until python3 -c "import urllib.request as u; u.urlopen(\"http://127.0.0.1:$port/readyz\")" 2>/dev/null; do
  kill -0 $make || { echo "make serve ended without a server"; exit 1; }
  sleep 1
done
echo "==> make serve: ready after $((SECONDS - start)) s, $(du -sm .venv | cut -f 1) MB in .venv"
.venv/bin/antiphon probe "http://127.0.0.1:$port" --sessions 1 --seconds 5 --max-lost 0
kill -TERM $make # which make passes on
wait $make || true'

echo "==> Debian $SUITE with python3-venv, make and git"
mmdebstrap --quiet --mode=root --variant=minbase --include=python3-venv,make,git "$SUITE" "$ROOT" $(sources)
mount -t proc proc "$ROOT/proc"
mount -t sysfs -o ro sys "$ROOT/sys"
mount --rbind /dev "$ROOT/dev"
cp -L /etc/resolv.conf /etc/hosts "$ROOT/etc/"
lend_pip
lend_environment
git clone --quiet "$CHECKOUT" "$ROOT/srv/antiphon"
for step in "${STEPS[@]}"; do
  start=$SECONDS
  case $step in
  serve) inside "$SERVE" ;;
  check | test) inside "make $step" ;;
  *) inside "$step" ;;
  esac
  echo "==> $step: $((SECONDS - start)) s, $(du -smx --exclude="$ROOT/host" "$ROOT" | cut -f 1) MB in the root"
done
