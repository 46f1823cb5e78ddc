package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/vethexporter/vethexporter/collector"
)

// server is the HTTP side of the exporter.
type server struct {
	http   http.Server
	ending atomic.Bool
	logger *slog.Logger
}

// newServer sets up all paths, and refuses a web configuration that cannot be read.
func newServer(cfg *config, scraper *collector.Scraper, logger *slog.Logger) (*server, error) {
	if err := web.Validate(*cfg.web.WebConfigFile); err != nil {
		return nil, fmt.Errorf("--web.config.file: %w", err)
	}
	self := prometheus.NewRegistry()
	self.MustRegister(
		versioncollector.NewCollector("vethexporter"),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	s := &server{logger: logger}
	mux := http.NewServeMux()
	pattern := cfg.telemetryPath
	if pattern == "/" {
		pattern = "/{$}" // that path, not all of them
	}
	mux.Handle(pattern, &metricsHandler{
		scraper: scraper, self: self, timeout: cfg.timeout, offset: cfg.timeoutOffset, logger: logger,
	})
	mux.HandleFunc("/-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "vethexporter is healthy.")
	})
	mux.HandleFunc("/-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if s.ending.Load() {
			http.Error(w, "vethexporter is shutting down.", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "vethexporter is ready.")
	})
	if cfg.pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	if cfg.telemetryPath != "/" {
		landing, err := web.NewLandingPage(web.LandingConfig{
			Name: "vethexporter", Version: version.Info(), Profiling: fmt.Sprint(cfg.pprof),
			Description: "Prometheus exporter for the network namespaces of a node.",
			Links: []web.LandingLinks{
				{Address: cfg.telemetryPath, Text: "Metrics"},
				{Address: "/-/healthy", Text: "Health"},
				{Address: "/-/ready", Text: "Readiness"},
			},
		})
		if err != nil {
			return nil, fmt.Errorf("landing page: %w", err)
		}
		mux.Handle("/", landing)
	}
	s.http = http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// listen serves until ctx ends, and lets the scrapes under way end first.
func (s *server) listen(ctx context.Context, flags *web.FlagConfig) error {
	failed := make(chan error, 1)
	go func() { failed <- web.ListenAndServe(&s.http, flags, s.logger) }()
	select {
	case err := <-failed:
		if listen := (*net.OpError)(nil); errors.As(err, &listen) {
			return fmt.Errorf("--web.listen-address: %w", err)
		}
		return err
	case <-ctx.Done():
	}
	s.logger.Info("Shutting down")
	s.ending.Store(true)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
