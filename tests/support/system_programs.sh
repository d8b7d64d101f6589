#!/usr/bin/env bash
# The programs that tests need and pip does not bring: those of `make test`, and with the argument `lab` those of
# `make test-lab` as well. All are looked for first. Root on Debian and Ubuntu installs what is missing and looks
# again; everywhere else one message names it all, with the command to type where there is apt.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin" # HAProxy is there, which is not on every user's path
verb="make test${1:+-$1}"

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
voice() { # voice NAME: festival says itself which voices it has, in whatever folder
  # A here-string: what ends before it reads, as a stand-in may, would fail an echo in front of it by SIGPIPE.
  festival --pipe <<<'(mapcar (lambda (name) (print name)) (voice.list))' | grep -x "$1"
}

look() {
  missing=()
  program git
  program make
  need python3-venv "${PYTHON:-python3}" -c 'import ensurepip, venv'
  # The load balancer and Prometheus are tested as they are.
  program haproxy
  program promtool prometheus
  # INT8 products are tested on a CPU of ten years ago.
  program qemu-x86_64 qemu-user
  # The page is checked in Node.js and driven in a browser.
  need nodejs node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)'
  program npm
  need chromium any_of "${CHROMIUM:-chromium}" chromium chromium-browser google-chrome
  # In Firefox too, which plays nothing without a sound device.
  need firefox-esr any_of "${FIREFOX:-firefox-esr}" firefox-esr firefox
  program pulseaudio
  # The built-in recogniser is asked in their voices.
  program espeak-ng
  program flite
  [ "$verb" = "make test-lab" ] || return 0
  # The training's other speakers: their voices are tested, and when each word starts.
  program festival
  need festvox-kdlpc16k voice ked_diphone
  need festvox-us-slt-hts voice cmu_us_slt_arctic_hts
  # What is said is checked by a recogniser of others.
  program pocketsphinx_batch pocketsphinx
  need pocketsphinx-en-us test -d /usr/share/pocketsphinx/model/en-us
  # The voices of the models' tests that training never hears.
  need festvox-kallpc16k voice kal_diphone
  need freetts test -e /usr/share/java/freetts.jar
  program java default-jre-headless
}

look
[ "${#missing[@]}" -gt 0 ] || exit 0
install=(apt-get install --yes --no-install-recommends ca-certificates "${missing[@]}")
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  echo "==> installing what the tests need: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  "${install[@]}" -qq
  hash -r
  look
  [ "${#missing[@]}" -gt 0 ] || exit 0
  echo "$verb still needs, after the installation: ${missing[*]}"
  exit 1
fi
echo "$verb needs what is not installed here: ${missing[*]}"
if command -v apt-get >/dev/null; then echo "On Debian and Ubuntu type: sudo ${install[*]}"; fi
exit 1
