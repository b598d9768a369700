#!/usr/bin/env bash
# Build the site from docs/, the README and the sources:
#   scripts/site.sh              into build/site; a dead link or a name that does not exist is an error
#   scripts/site.sh serve        and show it on http://127.0.0.1:8000 while pages change
#   scripts/site.sh release      add it, as this version and as `latest`, to the local branch gh-pages, which hosts serve
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

check_machine
make_environment plot,dev "${NEWEST[@]}"
export NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = serve ]; then exec mkdocs serve; fi
if [ "${1:-}" = release ]; then
    timeout 300 mike deploy --update-aliases "$(cpudist --version | cut -d ' ' -f 2)" latest
    exec timeout 60 mike set-default latest
fi
timeout 300 mkdocs build --strict --site-dir build/site
say "open build/site/index.html"
