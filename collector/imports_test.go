package collector

import (
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

// listedPackage is what go list tells of a package, tests not among it.
type listedPackage struct {
	ImportPath, Dir string
	Imports         []string
	GoFiles         []string
}

// local returns the package's path in the module, and false for a library's.
func (p *listedPackage) local() (string, bool) { return strings.CutPrefix(p.ImportPath, module+"/") }

// packages returns all packages of the module and what they depend on.
func packages(t *testing.T) []*listedPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), nettest.Tool(t, "go"), "list", "-deps", "-json=ImportPath,Dir,Imports,GoFiles", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []*listedPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		p := &listedPackage{}
		if err := dec.Decode(p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
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
	seen := 0
	for _, p := range packages(t) {
		path, ok := p.local()
		if !ok {
			continue
		}
		seen++
		for _, imported := range p.Imports {
			to, local := strings.CutPrefix(imported, module+"/")
			switch {
			case local && to == "internal/nettest":
				t.Errorf("%s imports %s, which is for tests", path, to)
			case local && layer(to) >= layer(path):
				t.Errorf("%s imports %s, which stands no lower", path, to)
			case imported == "os/exec" && path != "internal/nettest":
				t.Errorf("%s imports %s: the exporter runs no programs", path, imported)
			case strings.HasPrefix(imported, "github.com/alecthomas/kingpin") && layer(path) < 3:
				t.Errorf("%s imports %s: flags belong to cmd", path, imported)
			case imported == "testing" && path != "internal/nettest":
				t.Errorf("%s imports %s", path, imported)
			}
		}
	}
	if seen < 5 {
		t.Errorf("%d packages of the module", seen)
	}
}

// TestSourceKeepsTheRules looks at what the product's files say, where an import alone does not tell.
func TestSourceKeepsTheRules(t *testing.T) {
	for _, p := range packages(t) {
		path, ok := p.local()
		if !ok {
			continue
		}
		for _, name := range p.GoFiles {
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if n == nil {
					return true
				}
				for _, complaint := range complaints(path, n) {
					t.Errorf("%s: %s", files.Position(n.Pos()), complaint)
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
				!(path == "internal/nettest" && name == "unix.Unshare") {
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
}
