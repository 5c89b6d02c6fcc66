#!/usr/bin/env bash
# Makes the environment of the client tests in .cache: the clients' own pinned versions, apart from the product's.
# Run again it does nothing, until a list of versions changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

here=tests/e2e/clients
venv=.cache/clients-venv
node=.cache/clients-node
stamp=.cache/clients-$(cat $here/requirements.txt $here/package.json | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0

log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() { "$@" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }; }

echo "installing the clients that are tested (a minute or two)"
rm -rf .cache/clients-*
mkdir -p $node
quietly "${PYTHON:-python3.11}" -m venv $venv
quietly $venv/bin/python -m pip install --disable-pip-version-check --no-input -r $here/requirements.txt
if command -v npm > /dev/null; then
    cp $here/package.json $node/
    quietly npm install --prefix $node --no-audit --no-fund --ignore-scripts
else
    echo "npm is not installed: the Node.js client is not tested"
fi
touch "$stamp"
