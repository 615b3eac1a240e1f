package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// functionName matches a function or method as ARCHITECTURE.md writes it:
// `pkg.Func`, `pkg.Type.Method` or `pkg.(*Type).Method`.
var functionName = regexp.MustCompile("`([a-z]+\\.(?:\\(\\*[A-Za-z]+\\)\\.|[A-Z][A-Za-z]*\\.)?[A-Za-z]+)`")

// TestArchitectureFunctions checks that every function that ARCHITECTURE.md names
// exists in the package it names.
func TestArchitectureFunctions(t *testing.T) {
	declared := declaredFunctions(t)
	checked := 0
	for _, found := range functionName.FindAllStringSubmatch(documents(t)["ARCHITECTURE.md"], -1) {
		name := found[1]
		if strings.HasSuffix(name, ".go") || strings.HasSuffix(name, ".md") {
			continue
		}
		checked++
		if !declared[name] {
			t.Errorf("ARCHITECTURE.md names %s, which does not exist", name)
		}
	}
	if checked < 50 {
		t.Errorf("only %d functions were found", checked)
	}
}

// declaredFunctions returns the functions and methods of all product packages, by
// the last element of their package path.
func declaredFunctions(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.IsDir() && path != root && (base[0] == '.' || base == "testdata" || base == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				names[file.Name.Name+"."+receiver(f)+f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// receiver returns the receiver of f as a prefix of its name, "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	switch x := f.Recv.List[0].Type.(type) {
	case *ast.StarExpr:
		if name, ok := x.X.(*ast.Ident); ok {
			return "(*" + name.Name + ")."
		}
	case *ast.Ident:
		return x.Name + "."
	}
	return ""
}

// packageRow matches a row of ARCHITECTURE.md's table of packages.
var packageRow = regexp.MustCompile("(?m)^\\| (`[a-z/`, ]+`) \\| ")

// TestArchitecturePackages checks that the table of packages names every directory
// of the module with Go files at its top, and none that does not exist.
func TestArchitecturePackages(t *testing.T) {
	_, table, _ := strings.Cut(documents(t)["ARCHITECTURE.md"], "\n## Packages\n")
	table, _, _ = strings.Cut(table, "\n## ")
	listed := make(map[string]bool)
	for _, row := range packageRow.FindAllStringSubmatch(table, -1) {
		for name := range strings.SplitSeq(strings.ReplaceAll(row[1], "`", ""), ", ") {
			listed[name] = true
		}
	}
	for name := range listed {
		if files, _ := filepath.Glob(filepath.Join(root, name, "*.go")); len(files) == 0 {
			t.Errorf("ARCHITECTURE.md lists package %s, which does not exist", name)
		}
	}
	dirs, err := filepath.Glob(filepath.Join(root, "*", "*.go"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no packages found: %v", err)
	}
	for _, file := range dirs {
		if name := filepath.Base(filepath.Dir(file)); !listed[name] {
			t.Errorf("ARCHITECTURE.md does not list package %s", name)
			listed[name] = true
		}
	}
}
