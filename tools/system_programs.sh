#!/usr/bin/env bash
# The programs that `make test` needs and pip does not bring. All are looked for first. Root on Debian and Ubuntu
# installs what is missing; everywhere else one message names it all, with the command to type.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin" # HAProxy is there, which is not on every user's path

missing=()
need() { # need PACKAGE COMMAND...: the package of Debian is missing where the command fails
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
program() { need "${2:-$1}" command -v "$1"; } # program NAME [PACKAGE]
any_of() { # any_of NAME...: one of these programs will do
  local name
  for name in "$@"; do ! command -v "$name" || return 0; done
  return 1
}
voice() { compgen -G "/usr/share/festival/voices/*/$1"; }

program git
program make
need python3-venv "${PYTHON:-python3}" -c 'import ensurepip, venv'
# The load balancer and Prometheus are tested as they are.
program haproxy
program promtool prometheus
# INT8 products are tested on a CPU of ten years ago.
program qemu-x86_64 qemu-user
# The training's speakers: their voices are tested, and when each word starts.
program espeak-ng
program flite
program festival
need festvox-kdlpc16k voice ked_diphone
need festvox-us-slt-hts voice cmu_us_slt_arctic_hts
# The page is checked in Node.js and driven in a browser.
need nodejs node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)'
program npm
need chromium any_of "${CHROMIUM:-chromium}" chromium chromium-browser google-chrome

[ "${#missing[@]}" -gt 0 ] || exit 0
install=(apt-get install --yes --no-install-recommends ca-certificates "${missing[@]}")
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "==> installing what the tests need: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  "${install[@]}" -qq
else
  echo "make test needs what is not installed here: ${missing[*]}"
  echo "On Debian and Ubuntu type: sudo ${install[*]}"
  exit 1
fi
