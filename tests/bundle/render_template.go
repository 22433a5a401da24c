// Render a bundle template as Databricks' CLI does (libs/template/renderer.go): paths are templates,
// contents are where a file ends in .tmpl; any other is copied.
//
// Usage: go run render_template.go TEMPLATE_DIR OUTPUT_DIR PROJECT_NAME
package main

import (
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

func render(text string, values map[string]any) string {
	parsed, err := template.New("").Option("missingkey=error").Parse(text)
	if err != nil {
		log.Fatal(err)
	}
	var out strings.Builder
	if err := parsed.Execute(&out, values); err != nil {
		log.Fatal(err)
	}
	return out.String()
}

func main() {
	from, to := os.Args[1], os.Args[2]
	values := map[string]any{"project_name": os.Args[3]}
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		text, place := string(content), render(relative, values)
		if strings.HasSuffix(place, ".tmpl") {
			text, place = render(text, values), strings.TrimSuffix(place, ".tmpl")
		}
		place = filepath.Join(to, place)
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			return err
		}
		return os.WriteFile(place, []byte(text), 0o644)
	})
	if err != nil {
		log.Fatal(err)
	}
}
