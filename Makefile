# Builds, tests and demonstrates Yardmaster. `make help` lists the targets.

SHELL      := /bin/bash
GO         ?= go
BINARY     := bin/yardmaster
VERSION    := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS    := -s -w -X main.version=$(VERSION)
FUZZTIME   ?= 30s
PKGS       ?= ./...
JOBS       ?= 2000
SEEDS      ?= 100000
FIRST      ?= 1
YEAR_JOBS  ?= 1000000
PATH_JOBS  ?= 10000000
REPORT     ?= drills
DURATION   ?= 30m
RATE       ?= 1500
PEERS      ?=
SCALE      ?=

# The same settings for all commands, so that each package is compiled once.
export CGO_ENABLED := 0
export GOFLAGS     := $(strip $(shell $(GO) env GOFLAGS 2>/dev/null) -trimpath)

.DEFAULT_GOAL := help
.PHONY: help build test outbox-tests console-tests console-images console-path python typescript race check fuzz sim mutants year bench bench-scale bench-peers check-peers demo drill drill-tests image \
        compose-secrets compose-up compose-down compose-ps compose-logs compose-drill soak cover clean FORCE

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: $(BINARY) ## build bin/yardmaster, one static binary

# The Go tool knows what has changed, so this always runs it.
$(BINARY): FORCE
	@$(GO) build -ldflags '$(LDFLAGS)' -o $@ ./cmd/node

# The tests with clusters take longest, so they start first, beside one other package at a
# time: with more beside them, elections on two processors take longer than tests wait. The
# other packages follow, four at a time, because three of them mostly wait.
BESIDE  := ./client/... ./internal/... ./ledger/... ./scheduler/...
WAITING := ./test/drill ./test/wallclock ./cluster ./node
GO_TEST := $(GO) test -json -vet=off
test typescript race: export YARD_BIN := $(CURDIR)/$(BINARY)
test: build python typescript ## run all tests; those with real processes use the binary
	@set -o pipefail; $(GO) build -o bin/testreport ./test/cmd/testreport && { \
	$(if $(filter ./...,$(PKGS)),$(GO_TEST) -p 2 ./test/clustertest $(BESIDE); \
	$(GO_TEST) -p 4 $(WAITING) $$($(GO) list ./... | grep -vxF "$$($(GO) list ./test/clustertest $(BESIDE))"),$(GO_TEST) -p 2 $(PKGS)); } | bin/testreport
	@$(if $(filter ./...,$(PKGS)),$(MAKE) --no-print-directory outbox-tests console-tests)

# The tests of the outbox are a module of their own because of the database drivers, which
# vet would read for as long as the compiler. Without PostgreSQL, they use SQLite only.
outbox-tests: build ## test the outbox and the fence of the Go SDK with PostgreSQL and SQLite
	@test/benchpeers/install.sh postgresql || echo 'the tests of the outbox with PostgreSQL are skipped'
	@for module in test/outbox examples/sort; do (cd $$module && $(GO) mod download) || { \
	  echo "the modules that $$module needs cannot be downloaded: the tests of the outbox are skipped"; exit 0; }; done; \
	cd test/outbox && YARD_BIN=$(CURDIR)/$(BINARY) $(GO) test -count=1 -vet=off .

# The tests of the console are a module of their own because of the driver of the browser.
# They are skipped where Chromium is missing, except if CI is set.
CHROMIUM_WORKS := chromium --version >/dev/null 2>&1
CONSOLE_TESTS  := cd test/console && YARD_BIN=$(CURDIR)/$(BINARY) $(GO) test -count=1 -vet=off -timeout 10m
console-tests: build ## test the console with three nodes in a browser (needs Chromium)
	@$(CHROMIUM_WORKS) || { echo 'the console is tested with Chromium; trying to install it'; \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1; }; \
	$(CHROMIUM_WORKS) || echo 'could not: to test the console install it (Debian: apt-get install chromium)'; \
	(cd test/console && $(GO) mod download) || { echo 'the modules that test/console needs cannot be downloaded: the tests of the console are skipped'; exit 0; }; \
	$(CONSOLE_TESTS) .

console-images: build ## take the pictures of the console in docs/images/console (needs Chromium)
	@$(CONSOLE_TESTS) -run TestImages . -images=$(CURDIR)/docs/images/console

console-path: build ## find, correct and rerun 12 jobs among PATH_JOBS (10000000) in the console, with pictures (needs Chromium)
	@$(CONSOLE_TESTS) -timeout 3h -v -run TestPath . -path=$(PATH_JOBS) -images=$(CURDIR)/docs/images/console

# The tests of the Python client, a package in clients/python, are skipped where Python is
# missing, the check of its types where mypy is. They are checked for Python 3.9, the oldest.
MYPY_WORKS   := mypy --version >/dev/null 2>&1
PYTHON_WORKS := python3 -c 'import ssl, sys, threading, unittest; assert sys.version_info >= (3, 9)' >/dev/null 2>&1
python:
	@$(PYTHON_WORKS) || { echo 'the Python client needs Python 3.9 or later; trying to install it'; \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3; } >/dev/null 2>&1; $(PYTHON_WORKS); } || \
	  echo 'could not: its tests are skipped; to run them install python3 (Debian: apt-get install python3)'
	@$(MYPY_WORKS) || { echo 'mypy checks the types of the Python client; trying to install it'; \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq mypy; } >/dev/null 2>&1; }; \
	if $(MYPY_WORKS); then cd clients/python && mypy --strict --python-version 3.9 --no-error-summary --cache-dir $(CURDIR)/bin/mypy .; \
	else echo 'could not: its types are not checked; to check them install mypy (Debian: apt-get install mypy)'; fi

# The TypeScript client is neither checked nor tested where Node or the compiler is missing.
TYPESCRIPT_WORKS := node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' >/dev/null 2>&1 && tsc --version >/dev/null 2>&1
typescript: build ## check, build and test the TypeScript client
	@{ $(TYPESCRIPT_WORKS); } || { echo 'the TypeScript client needs Node 18 and tsc 4.8 or later; trying to install them'; \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq nodejs node-typescript; } >/dev/null 2>&1; }; \
	if $(TYPESCRIPT_WORKS); then cd clients/typescript && rm -rf build && tsc && sh test/run.sh; \
	else echo 'could not: it is not checked; to check it install Node and TypeScript (Debian: apt-get install nodejs node-typescript)'; fi

# Under the detector, two clusters at once are too slow on two processors: no authority
# renews its lease in time.
race: build ## run all tests under the race detector (needs a C compiler)
	@command -v gcc >/dev/null || command -v cc >/dev/null || { \
	  echo 'the race detector needs a C compiler; trying to install one'; \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq gcc libc6-dev; } >/dev/null 2>&1 || { \
	    echo 'could not: install gcc and the C headers (Debian: apt-get install gcc libc6-dev), then repeat'; exit 1; }; }
	@CGO_ENABLED=1 $(GO) test -race -timeout 30m -p 1 -parallel 1 $(PKGS)

check: ## format, vet, layers, documents, modules
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	  [ -z "$$unformatted" ] || { echo "not formatted (run gofmt -w):"; echo "$$unformatted"; exit 1; }
	@echo 'format      ok'
	@$(GO) vet ./...
	@echo 'vet         ok'
	@$(GO) test -count=1 ./internal/arch >/dev/null || { $(GO) test -count=1 ./internal/arch; exit 1; }
	@echo 'layers      ok'
	@$(GO) test -count=1 ./internal/docs >/dev/null || { $(GO) test -count=1 ./internal/docs; exit 1; }
	@echo 'documents   ok'
	@$(GO) mod tidy -diff
	@echo 'modules     ok'

fuzz: ## run every fuzz target for FUZZTIME (30s), in PKGS (all)
	@set -e; for pkg in $$($(GO) list $(PKGS)); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg | tail -n 3; \
	    test $${PIPESTATUS[0]} -eq 0; \
	  done; done

sim: ## simulate SEEDS (100000) yards with faults, from seed FIRST (1) on
	@$(GO) test -count=1 -timeout 24h -v -run TestSeeds ./test/sim -seeds=$(SEEDS) -first=$(FIRST)

mutants: ## check that the simulation finds each of the known mutants
	@$(GO) test -count=1 -timeout 1h -v -run TestMutants ./test/sim -mutants

year: ## run a yard through a year of YEAR_JOBS (1000000) jobs in memory; its size must level off
	@$(GO) test -count=1 -timeout 24h -v -run TestYear ./test/sim/lean -jobs=$(YEAR_JOBS) -days=365

bench: build ## benchmark three nodes against baselines on this machine
	@YARD_BIN=$(BINARY) $(GO) run ./test/cmd/bench

bench-scale: build ## measure how a yard scales and draw it, in 45 minutes (SCALE=<flags>)
	@YARD_BIN=$(BINARY) $(GO) run ./test/cmd/bench scale --svg docs/reference/scale $(SCALE)

# Its clients are in a module of their own, whose dependencies are downloaded at the first
# run. `make check` does not compile it; check-peers does.
bench-peers: build ## benchmark beside JetStream, Redis, PostgreSQL and beanstalkd (PEERS=<flags>)
	@test/benchpeers/install.sh
	@cd test/benchpeers && YARD_BIN=$(CURDIR)/$(BINARY) $(GO) run . $(PEERS)

check-peers: ## vet and test the module of bench-peers
	@cd test/benchpeers && $(GO) vet . && $(GO) test -count=1 . && $(GO) mod tidy -diff

demo: build ## run 2,000 jobs on three nodes and kill the authority half-way
	@$(BINARY) demo --nodes 3 --jobs $(JOBS) --kill

drill: build ## inject every known fault into real yards and check the promises (REPORT=<dir>)
	@YARD_BIN=$(BINARY) $(GO) run ./test/cmd/drill run --all --report $(REPORT)

drill-tests: build ## run the long tests with faults: some minutes
	@YARD_SOAK=1 YARD_BIN=$(CURDIR)/$(BINARY) $(GO) test -count=1 -v -timeout 30m -run 'TestFailover|TestDrill|TestMembers|TestInterop' ./test/drill ./cluster ./test/clustertest

soak: build ## run a yard for DURATION (30m) under RATE (1500) jobs/s and check that it levels off
	@YARD_BIN=$(BINARY) $(GO) run ./test/cmd/soak --duration $(DURATION) --rate $(RATE)

# The image is built from scratch, without a registry: it holds only static programs.
IMAGE   := bin/image
COMPOSE ?= docker-compose
YARD    := $(COMPOSE) -f deploy/compose/compose.yml -p yard
image: build ## build the container image yardmaster:local from this host's binaries
	@rm -rf $(IMAGE) && mkdir -p $(IMAGE)/data $(IMAGE)/usr/local/bin && cp $(BINARY) $(IMAGE)/usr/local/bin/
	@$(GO) build -ldflags '-s -w' -o $(IMAGE)/usr/local/bin/ ./examples/runner ./examples/worker ./examples/producer
	@docker build -q -f deploy/compose/Dockerfile.host -t yardmaster:local $(IMAGE)
	@docker image inspect -f 'yardmaster:local has {{.Size}} bytes' yardmaster:local

# The directory excludes other users of the host; the files must be readable by the
# container's user, which has another number.
SECRETS := deploy/compose/secrets
compose-secrets: ## create the secrets of deploy/compose that are missing
	@mkdir -p -m 0700 $(SECRETS); for s in cluster_secret server_token http_token; do \
	  [ -s $(SECRETS)/$$s ] || { od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > $(SECRETS)/$$s; chmod 0444 $(SECRETS)/$$s; }; done

compose-up: image compose-secrets ## start three nodes, two workers and a producer as containers
	@$(YARD) up -d

compose-down: ## stop and remove the containers; the volumes stay
	@$(YARD) down

compose-ps: ## show the containers and their health
	@$(YARD) ps

compose-logs: ## follow the logs of the containers
	@$(YARD) logs -f --tail 20

compose-drill: image compose-secrets ## kill each node's container in turn under load and check the promises
	@YARD_COMPOSE='$(COMPOSE)' YARD_TEST_SEED=$(SEED) $(GO) test -count=1 -v -timeout 20m -run 'TestCompose' ./test/drill

cover: ## write coverage.out and print the coverage of each package
	@$(GO) test -coverprofile=coverage.out ./... | grep -v 'no test files'

clean: ## remove the files that were built
	@rm -rf bin coverage.out
