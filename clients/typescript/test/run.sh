#!/bin/sh
# Runs the compiled tests, three files at a time, and prints their number; of a file with a
# test that fails, what it prints.
set -e
cd "$(dirname "$0")/../build/test"
printf '%s\n' *.test.js | xargs -P 3 -n 1 sh -c 'node --test "$0" >"$0.log" 2>&1 || { cat "$0.log"; exit 1; }'
awk '/^# pass/ { ok += $3 } /^# skipped/ { left += $3 } END { print "typescript  ok: " ok " tests, " left + 0 " skipped" }' *.log
