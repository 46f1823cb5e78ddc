# Commands for people: run, test, bench, lab work on the code: lint, generate, build.
BIN     := bin/vethexporter
PKG     := github.com/prometheus/common/version
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X $(PKG).Version=$(VERSION) -X $(PKG).Revision=$(shell git rev-parse HEAD 2>/dev/null || echo unknown) \
           -X $(PKG).Branch=$(shell git rev-parse --abbrev-ref HEAD 2>/dev/null || echo unknown)
LINT    := go tool -modfile=tools/golangci-lint.mod golangci-lint
ARGS    ?=

# What the tests need beside Go: a C compiler for the race detector, and the programs whose word counts against ours.
PROGRAMS := gcc git dockerd prometheus conntrack ethtool nft ip nstat busybox unshare
PACKAGES := gcc libc6-dev git docker.io prometheus conntrack ethtool nftables iproute2 busybox-static util-linux

.PHONY: run build test unit lint generate check-generated deps bench clean

run: build
	@[ "$$(id -u)" = 0 ] || echo "Not root: only namespaces of processes are read, and only what /proc/PID/net shows of them." \
	  "As root, or with setcap cap_sys_ptrace,cap_sys_admin,cap_net_admin+ep $(BIN), everything is."
	./$(BIN) $(ARGS)

build:
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/vethexporter

test: deps lint check-generated unit

# As root, tests that want namespaces must run: for want of privilege or a program they fail instead of being skipped.
unit:
	VETHEXPORTER_REQUIRE_ROOT=$$([ "$$(id -u)" = 0 ] && echo 1) go test -race -count=1 -p 1 -timeout 15m $(TESTFLAGS) ./...

lint:
	go vet ./...
	$(LINT) run ./...

generate:
	go generate ./...

# Tracked files must be what generate makes of the code.
check-generated:
	@tmp=$$(mktemp) && trap 'rm -f '$$tmp EXIT && go run ./cmd/vethexporter metrics > $$tmp && \
	  diff -u docs/metrics.md $$tmp || { echo 'docs/metrics.md is out of date: make generate' >&2; exit 1; }

deps:
	@missing=; for p in $(PROGRAMS); do PATH=$$PATH:/usr/sbin:/sbin command -v $$p >/dev/null || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "Not installed:$$missing. Tests that need them are skipped. As root, make test installs them."; exit 0; fi; \
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $(PACKAGES)



clean:
	rm -rf bin

# Processor time for each namespace, against the bare kernel reads. Run as root.
bench:
	go test -run '^$$' -bench 'Scrape|Floor|Devices' -benchtime $(or $(TIME),2s) -count $(or $(COUNT),3) -timeout 30m ./cmd/vethexporter
