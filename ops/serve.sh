#!/usr/bin/env bash
# Starts the node in the foreground and says how to talk to it, once it is ready.
#   ops/serve.sh BUILD MODEL PORT [FLAGS of kvnode serve]...
set -euo pipefail
build=$1 model=$2 port=$3
shift 3

hint() {
    local name
    name=$(basename "$model" .gguf)
    cat <<END

talk to it:
  curl -N http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model":"$name","stream":true,"messages":[{"role":"user","content":"Why is the sky blue?"}]}'
look at it:  $build/kvctl status        stop it: Ctrl-C, or $build/kvctl shutdown
END
}

# the hint follows the ready line; the node itself keeps our pid, so that signals reach it
exec > >(while IFS= read -r line; do
    case $line in
    "kvnode ready:"*) hint; printf '\n%s\n' "$line" ;;
    *) printf '%s\n' "$line" ;;
    esac
done)
exec "$build/kvnode" serve "$model" "$@"
