package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strconv"
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

	include, exclude string
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
	metrics.Flag("format", "Format to print: markdown or json.").Default("markdown").EnumVar(&cfg.metricsFormat, "markdown", "json")

	if cfg.command, err = app.Parse(args); err != nil {
		return nil, 1, fmt.Errorf("%w (try --help)", err)
	}
	return cfg, 0, nil
}

func addServeFlags(serve *kingpin.CmdClause, cfg *config) {
	cfg.web = webflag.AddFlags(serve, ":9968")
	serve.Flag("web.telemetry-path", "Path under which to expose metrics.").Default("/metrics").StringVar(&cfg.telemetryPath)
	serve.Flag("web.max-requests", "Scrapes that may run at a time; further ones wait until their timeout.").Default("2").IntVar(&cfg.maxScrapes)
	serve.Flag("web.enable-pprof", "Expose Go profiles under /debug/pprof/.").BoolVar(&cfg.pprof)
	serve.Flag("scrape.timeout", "Time for a scrape whose client names none; Prometheus names its own.").Default("10s").DurationVar(&cfg.timeout)
	serve.Flag("scrape.timeout-offset", "Part of the timeout kept for sending the answer, at most a quarter of it.").Default("250ms").DurationVar(&cfg.timeoutOffset)

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

	serve.Flag("netns.include", "Regular expression, anchored: report only namespaces of such a name.").StringVar(&cfg.include)
	serve.Flag("netns.exclude", "Regular expression, anchored: do not report namespaces of such a name.").StringVar(&cfg.exclude)
	serve.Flag("path.procfs", "Mount point of the node's procfs.").Default("/proc").StringVar(&cfg.procfs)
	serve.Flag("path.sysfs", "Mount point of the node's sysfs.").Default("/sys").StringVar(&cfg.sysfs)
	serve.Flag("path.netns", "Folder of mounted namespaces whose names are used. Repeatable.").Default("/run/netns").StringsVar(&cfg.named)
	serve.Flag("path.docker-netns", "Folder of mounted namespaces whose names say nothing. Repeatable.").Default("/run/docker/netns").StringsVar(&cfg.unnamed)
	serve.Flag("docker.socket", "Socket of the Docker Engine API, for the names of containers; empty for none.").Default("/run/docker.sock").StringVar(&cfg.dockerSocket)

	serve.Flag("limit.netns", "Namespaces to report at most; further ones are counted as capped. 0 for no limit.").Default("5000").IntVar(&cfg.maxNetns)
	serve.Flag("limit.devices", "Devices to report of a namespace other than the host's. 0 for no limit.").Default("512").IntVar(&cfg.maxDevices)
	serve.Flag("limit.series", "Series to report of a namespace other than the host's. 0 for no limit.").Default("10000").IntVar(&cfg.maxSeries)
}

// scraper returns the options of the scraper. Each error names the flag that it is about.
func (cfg *config) scraper(logger *slog.Logger) (collector.Options, error) {
	opts := collector.Options{
		Concurrent: cfg.maxScrapes, MaxSeries: cfg.maxSeries, Logger: logger,
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
		return opts, fmt.Errorf("no collector is enabled")
	}
	var err error
	if opts.Include, err = anchored("netns.include", cfg.include); err != nil {
		return opts, err
	}
	if opts.Exclude, err = anchored("netns.exclude", cfg.exclude); err != nil {
		return opts, err
	}
	for flag, n := range map[string]int{
		"web.max-requests": cfg.maxScrapes - 1, "limit.netns": cfg.maxNetns, "limit.devices": cfg.maxDevices, "limit.series": cfg.maxSeries,
		"scrape.timeout": int(cfg.timeout - 1), "scrape.timeout-offset": int(cfg.timeoutOffset),
	} {
		if n < 0 {
			return opts, fmt.Errorf("--%s: too small", flag)
		}
	}
	for flag, dir := range map[string]string{"path.procfs": cfg.procfs, "path.sysfs": cfg.sysfs} {
		if st, err := os.Stat(dir); err != nil {
			return opts, fmt.Errorf("--%s: %w", flag, err)
		} else if !st.IsDir() {
			return opts, fmt.Errorf("--%s: %s is not a folder", flag, dir)
		}
	}
	return opts, nil
}

// anchored compiles the regular expression of a flag; an empty one gives nil.
func anchored(flag, expr string) (*regexp.Regexp, error) {
	if expr == "" {
		return nil, nil
	}
	re, err := regexp.Compile("^(?:" + expr + ")$")
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return re, nil
}
