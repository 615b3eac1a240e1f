#!/bin/sh
# Installs those servers that are missing, by default all that the benchmark needs:
# install.sh [redis-server] [beanstalkd] [postgresql]. apt must not start them: policy-rc.d
# forbids that while it runs.
set -e
missing=
for server in ${*:-redis-server beanstalkd postgresql}; do
	program=$server
	[ $server = postgresql ] && program=initdb
	command -v $program >/dev/null || ls /usr/lib/postgresql/*/bin/$program >/dev/null 2>&1 || missing="$missing $server"
done
[ -n "$missing" ] || exit 0
echo "missing:$missing; trying to install"
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
