#!/bin/sh
# Installs the servers that the benchmark needs and that are missing. apt must not start
# them: policy-rc.d forbids that while it runs.
set -e
missing=
command -v redis-server >/dev/null || missing="$missing redis-server"
command -v beanstalkd >/dev/null || missing="$missing beanstalkd"
command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
[ -n "$missing" ] || exit 0
echo "the benchmark needs$missing; trying to install"
policy=/usr/sbin/policy-rc.d
if [ "$(id -u)" = 0 ] && [ ! -e $policy ]; then
	trap 'rm -f $policy' EXIT
	trap 'exit 1' INT TERM
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod 755 $policy
fi
export DEBIAN_FRONTEND=noninteractive
{ [ "$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 || {
	echo "could not: install them (Debian: apt-get install$missing), then repeat"
	exit 1
}
