package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/promslog"
	logflag "github.com/prometheus/common/promslog/flag"
	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"
	webflag "github.com/prometheus/exporter-toolkit/web/kingpinflag"

	"github.com/vethexporter/vethexporter/collector"
	"github.com/vethexporter/vethexporter/internal/netns"
)

// config is what the command line asks for.
type config struct {
	command       string
	metricsFormat string

	log           promslog.Config
	web           *web.FlagConfig
	telemetryPath string
	maxScrapes    int
	pprof         bool
	timeout       time.Duration
	timeoutOffset time.Duration

	collectors      map[string]*toggle
	disableDefaults bool

	include, exclude *regexp.Regexp
	procfs, sysfs    string
	named, unnamed   []string
	dockerSocket     string
	maxNetns         int
	maxDevices       int
	maxSeries        int
}

// toggle is a flag that knows whether it was given.
type toggle struct {
	on, given bool
}

func (t *toggle) Set(s string) error {
	on, err := strconv.ParseBool(s)
	t.on, t.given = on, true
	return err
}

func (t *toggle) String() string   { return strconv.FormatBool(t.on) }
func (t *toggle) IsBoolFlag() bool { return true }

// checked is a flag whose value is parsed and checked; its errors name the flag, which kingpin's own do not.
type checked[T any] struct {
	name  string
	into  *T
	parse func(string) (T, error)
}

func (c *checked[T]) Set(s string) error {
	value, err := c.parse(s)
	if err != nil {
		return fmt.Errorf("--%s: %w", c.name, err)
	}
	*c.into = value
	return nil
}

func (c *checked[T]) String() string { return fmt.Sprint(*c.into) }

// flag adds a checked flag.
func flag[T any](cmd *kingpin.CmdClause, name, help, value string, into *T, parse func(string) (T, error)) {
	f := cmd.Flag(name, help)
	if value != "" {
		f = f.Default(value)
	}
	f.SetValue(&checked[T]{name: name, into: into, parse: parse})
}

// exit is what kingpin's terminate panics with, after --help and --version.
type exit struct{ code int }

// parseFlags reads the command line. It returns no configuration if the line was answered with help or the version.
func parseFlags(args []string, stdout, stderr io.Writer) (cfg *config, code int, err error) {
	defer func() {
		if p := recover(); p != nil {
			e, ok := p.(exit)
			if !ok {
				panic(p)
			}
			cfg, code = nil, e.code
		}
	}()
	cfg = &config{collectors: map[string]*toggle{}}
	app := kingpin.New("vethexporter", "Prometheus exporter for the network namespaces of a node: TCP, devices, conntrack, softnet.")
	app.UsageWriter(stdout).ErrorWriter(stderr).Terminate(func(code int) { panic(exit{code}) })
	app.Version(version.Print("vethexporter"))
	app.HelpFlag.Short('h')
	logflag.AddFlags(app, &cfg.log)
	addServeFlags(app.Command("serve", "Serve metrics over HTTP.").Default(), cfg)

	metrics := app.Command("metrics", "Print all metrics with their meaning.")
	flag(metrics, "format", "Format to print: markdown or json.", "markdown", &cfg.metricsFormat, oneOf("markdown", "json"))

	if cfg.command, err = app.Parse(args); err != nil {
		return nil, 1, fmt.Errorf("%w (try --help)", err)
	}
	return cfg, 0, nil
}

func addServeFlags(serve *kingpin.CmdClause, cfg *config) {
	cfg.web = webflag.AddFlags(serve, ":9968")
	flag(serve, "web.telemetry-path", "Path under which to expose metrics.", "/metrics", &cfg.telemetryPath, urlPath)
	flag(serve, "web.max-requests", "Scrapes that may run at a time; further ones wait until their timeout.", "2", &cfg.maxScrapes, atLeast(1))
	serve.Flag("web.enable-pprof", "Expose Go profiles under /debug/pprof/.").BoolVar(&cfg.pprof)
	flag(serve, "scrape.timeout", "Time for a scrape whose client names none; Prometheus names its own.", "10s", &cfg.timeout, duration(time.Millisecond))
	flag(serve, "scrape.timeout-offset", "Part of the timeout kept for sending the answer, at most a quarter of it.", "250ms", &cfg.timeoutOffset, duration(0))

	serve.Flag("collector.disable-defaults", "Enable only the collectors that a flag of their own enables.").BoolVar(&cfg.disableDefaults)
	for _, c := range collector.All() {
		state := "off"
		if c.Default {
			state = "on"
		}
		t := &toggle{on: c.Default}
		cfg.collectors[c.Name] = t
		serve.Flag("collector."+c.Name, fmt.Sprintf("Enable the %s collector (default: %s).", c.Name, state)).SetValue(t)
	}

	flag(serve, "netns.include", "Regular expression, anchored: report only namespaces of such a name.", "", &cfg.include, anchored)
	flag(serve, "netns.exclude", "Regular expression, anchored: do not report namespaces of such a name, nor pairs with an end in one.", "", &cfg.exclude, anchored)
	flag(serve, "path.procfs", "Mount point of the node's procfs.", "/proc", &cfg.procfs, procfs)
	flag(serve, "path.sysfs", "Mount point of the node's sysfs.", "/sys", &cfg.sysfs, folder)
	serve.Flag("path.netns", "Folder of mounted namespaces whose names are used. Repeatable.").Default("/run/netns").StringsVar(&cfg.named)
	serve.Flag("path.docker-netns", "Folder of mounted namespaces whose names say nothing. Repeatable.").Default("/run/docker/netns").StringsVar(&cfg.unnamed)
	serve.Flag("docker.socket", "Socket of the Docker Engine API, for the names of containers; empty for none.").Default("/run/docker.sock").StringVar(&cfg.dockerSocket)

	flag(serve, "limit.netns", "Namespaces to report at most; further ones are counted as capped. 0 for no limit.", "5000", &cfg.maxNetns, atLeast(0))
	flag(serve, "limit.devices", "Devices to report of a namespace other than the host's. 0 for no limit.", "512", &cfg.maxDevices, atLeast(0))
	flag(serve, "limit.series", "Series to report of a namespace other than the host's. 0 for no limit.", "10000", &cfg.maxSeries, atLeast(0))
}

// scraper returns the options of the scraper.
func (cfg *config) scraper(logger *slog.Logger) (collector.Options, error) {
	opts := collector.Options{
		Include: cfg.include, Exclude: cfg.exclude, Concurrent: cfg.maxScrapes, MaxSeries: cfg.maxSeries, Logger: logger,
		Visitor: netns.VisitorOptions{Proc: cfg.procfs, Sys: cfg.sysfs, MaxDevices: cfg.maxDevices},
		Discovery: &netns.Discovery{
			Proc: cfg.procfs, Named: cfg.named, Unnamed: cfg.unnamed, MaxNetns: cfg.maxNetns,
		},
	}
	if cfg.dockerSocket != "" {
		opts.Discovery.Docker = netns.NewDocker(cfg.dockerSocket, cfg.procfs)
	}
	for _, c := range collector.All() {
		if t := cfg.collectors[c.Name]; t.given && t.on || !t.given && c.Default && !cfg.disableDefaults {
			opts.Collectors = append(opts.Collectors, c)
		}
	}
	if len(opts.Collectors) == 0 {
		return opts, errors.New("--collector.disable-defaults: no collector is enabled")
	}
	return opts, nil
}

// The parsers of checked flags.

func oneOf(values ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(values, s) {
			return "", fmt.Errorf("%q is none of %s", s, strings.Join(values, ", "))
		}
		return s, nil
	}
}

func atLeast(least int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least {
			return 0, fmt.Errorf("%q is no number from %d on", s, least)
		}
		return n, nil
	}
}

func duration(least time.Duration) func(string) (time.Duration, error) {
	return func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d < least {
			return 0, fmt.Errorf("%q is no time from %v on, such as 500ms or 10s", s, least)
		}
		return d, nil
	}
}

// anchored compiles a regular expression that has to match the whole of a name.
func anchored(expr string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(expr); err != nil {
		return nil, err
	}
	return regexp.Compile("^(?:" + expr + ")$")
}

// urlPath refuses what the multiplexer takes for a pattern, and the paths of other purposes.
func urlPath(s string) (string, error) {
	if !strings.HasPrefix(s, "/") || path.Clean(s) != s || strings.ContainsAny(s, "{} ") {
		return "", fmt.Errorf("%q is no path such as /metrics", s)
	}
	if strings.HasPrefix(s, "/-/") || strings.HasPrefix(s, "/debug/") {
		return "", fmt.Errorf("%s serves another purpose", s)
	}
	return s, nil
}

// procfs takes a folder that shows this process, as the scraper needs it to.
func procfs(path string) (string, error) {
	if _, err := os.Stat(filepath.Join(path, "thread-self", "ns", "net")); err != nil {
		return "", fmt.Errorf("no procfs that shows this process: %w", err)
	}
	return path, nil
}

func folder(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !st.IsDir() {
		return "", fmt.Errorf("%s is not a folder", path)
	}
	return path, nil
}
