package collector

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

const module = "github.com/vethexporter/vethexporter"

// source is a package of this module, tests not among it.
type source struct {
	path  string // in the module
	files []*ast.File
	set   *token.FileSet
}

// packages parses all packages of the module. Libraries need not be there.
func packages(t *testing.T) []*source {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), nettest.Tool(t, "go"), "list", "-find", "-json=ImportPath,Dir,GoFiles", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []*source
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var listed struct {
			ImportPath, Dir string
			GoFiles         []string
		}
		if err := dec.Decode(&listed); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		p := &source{path: strings.TrimPrefix(listed.ImportPath, module+"/"), set: token.NewFileSet()}
		for _, name := range listed.GoFiles {
			file, err := parser.ParseFile(p.set, filepath.Join(listed.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			p.files = append(p.files, file)
		}
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("%d packages in the module", len(all))
	}
	return all
}

// layer is how high a package stands: it may import those of lower layers only, so that nothing points back.
func layer(path string) int {
	switch {
	case path == "internal/nettest": // beside all others: tests import it, and it imports what they test
		return 2
	case strings.HasPrefix(path, "internal/"):
		return 1
	case strings.HasPrefix(path, "cmd/"):
		return 3
	default:
		return 2
	}
}

func TestImportsGoOneWay(t *testing.T) {
	for _, p := range packages(t) {
		for _, file := range p.files {
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if wrong := wrongImport(p.path, imported); wrong != "" {
					t.Errorf("%s: %s", p.set.Position(spec.Pos()), wrong)
				}
			}
		}
	}
}

// wrongImport tells what is wrong with an import of the package at path, if anything.
func wrongImport(path, imported string) string {
	to, local := strings.CutPrefix(imported, module+"/")
	switch {
	case local && to == "internal/nettest":
		return to + " is for tests"
	case local && layer(to) >= layer(path):
		return to + " stands no lower"
	case imported == "os/exec" && path != "internal/nettest":
		return imported + ": the exporter runs no programs"
	case imported == "testing" && path != "internal/nettest":
		return imported + " is for tests"
	case strings.HasPrefix(imported, "github.com/alecthomas/kingpin") && layer(path) < 3:
		return imported + ": flags belong to cmd"
	}
	return ""
}

// TestSourceKeepsTheRules looks at what the product's files say, where an import alone does not tell.
func TestSourceKeepsTheRules(t *testing.T) {
	for _, p := range packages(t) {
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				if n == nil {
					return true
				}
				for _, complaint := range complaints(p.path, n) {
					t.Errorf("%s: %s", p.set.Position(n.Pos()), complaint)
				}
				return true
			})
		}
	}
}

// complaints returns what is wrong with one node of a file of the package at path.
func complaints(path string, n ast.Node) (wrong []string) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Name.Name == "init" && n.Recv == nil {
			wrong = append(wrong, "func init: main wires, nothing else does")
		}
	case *ast.SelectorExpr:
		if pkg, ok := n.X.(*ast.Ident); ok && path != "internal/netns" {
			if name := pkg.Name + "." + n.Sel.Name; slices.Contains([]string{"unix.Setns", "unix.SYS_SETNS", "syscall.SYS_SETNS", "unix.Unshare"}, name) &&
				(path != "internal/nettest" || name != "unix.Unshare") {
				wrong = append(wrong, name+": only internal/netns changes the namespace of a thread")
			}
		}
	case *ast.CallExpr:
		if path == "internal/netns" || path == "internal/nettest" || !opensFiles(n.Fun) {
			return nil
		}
		for _, arg := range n.Args {
			ast.Inspect(arg, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, _ := strconv.Unquote(lit.Value)
					if strings.HasPrefix(text, "/proc") || strings.HasPrefix(text, "/sys") {
						wrong = append(wrong, text+": where procfs and sysfs are comes from a flag")
					}
				}
				return true
			})
		}
	}
	return wrong
}

// opensFiles tells whether a function takes the name of a file.
func opensFiles(fun ast.Expr) bool {
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := sel.X.(*ast.Ident)
	return ok && slices.Contains([]string{"os", "unix", "syscall", "path", "filepath", "procfs", "sysfs", "netns"}, pkg.Name)
}

// TestRulesComplain holds that the rules above notice what they are for.
func TestRulesComplain(t *testing.T) {
	const source = `package x
func init() {}
func f() {
	unix.Setns(3, 0)
	os.ReadFile("/proc/net/dev")
	os.Open(filepath.Join("/sys", "class"))
	unix.Open("/proc/"+name, 0, 0)
	flag("path.procfs").Default("/proc")
	def(Source("/proc/net/dev"))
	os.Open("/etc/proc")
}`
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	count := func(path string) (n int) {
		ast.Inspect(file, func(node ast.Node) bool {
			if node != nil {
				n += len(complaints(path, node))
			}
			return true
		})
		return n
	}
	// Of the nested call both the outer and the inner are complained of.
	if got := count("collector"); got != 6 {
		t.Errorf("%d complaints about a collector, want 6", got)
	}
	if got := count("internal/netns"); got != 1 {
		t.Errorf("%d complaints about internal/netns, want that of init", got)
	}
	for path, imported := range map[string]string{
		"collector": module + "/cmd/vethexporter", "internal/netns": module + "/internal/metric", "internal/metric": module + "/collector",
		"cmd/vethexporter": module + "/internal/nettest", "synthetic": "os/exec", "rules": "github.com/alecthomas/kingpin/v2",
	} {
		if wrongImport(path, imported) == "" {
			t.Errorf("%s may import %s", path, imported)
		}
	}
	for path, imported := range map[string]string{
		"collector": module + "/internal/netns", "cmd/vethexporter": module + "/collector", "internal/nettest": module + "/internal/netns",
	} {
		if wrong := wrongImport(path, imported); wrong != "" {
			t.Errorf("%s may not import %s: %s", path, imported, wrong)
		}
	}
}
