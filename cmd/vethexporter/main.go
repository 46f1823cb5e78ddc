// Command vethexporter exposes to Prometheus what the kernel knows of each network namespace of a node.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/prometheus/common/promslog"

	"github.com/vethexporter/vethexporter/collector"
	"github.com/vethexporter/vethexporter/internal/metric"
)

//go:generate sh -c "go run . metrics > ../../docs/metrics.md"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program, but for what belongs to the process. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, code, err := parseFlags(args, stdout, stderr)
	if cfg == nil && err == nil {
		return code // --help or --version, answered
	}
	if err == nil {
		err = commands[cfg.command](ctx, cfg, stdout, stderr)
	}
	if err != nil {
		// Errors of a YAML file take several lines.
		fmt.Fprintf(stderr, "vethexporter: error: %s\n", strings.Join(strings.Fields(err.Error()), " "))
		return 1
	}
	return 0
}

// commands are the subcommands.
var commands = map[string]func(ctx context.Context, cfg *config, stdout, stderr io.Writer) error{
	"serve":   serve,
	"metrics": printMetrics,
}

func printMetrics(_ context.Context, cfg *config, stdout, _ io.Writer) error {
	if cfg.metricsFormat == "json" {
		return metric.WriteJSON(stdout, collector.Groups())
	}
	return metric.WriteMarkdown(stdout, collector.Groups())
}

func serve(ctx context.Context, cfg *config, _, stderr io.Writer) error {
	cfg.log.Writer = stderr
	logger := promslog.New(&cfg.log)
	opts, err := cfg.scraper(logger)
	if err != nil {
		return err
	}
	scraper, err := collector.NewScraper(opts)
	if err != nil {
		return err
	}
	defer scraper.Close()
	server, err := newServer(cfg, scraper, logger)
	if err != nil {
		return err
	}
	if err := scraper.Check(ctx); err != nil {
		return err
	}
	return server.listen(ctx, cfg.web)
}
