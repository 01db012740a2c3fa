// Reads a dashboard by Grafana's own schema. Unknown fields, missing fields and wrong types are errors, in panels and queries
// too.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// Queries as they stand: the schema of a dashboard reads them before it knows their data source.
type queries struct {
	Panels []struct {
		Title   string            `json:"title"`
		Type    string            `json:"type"`
		Targets []json.RawMessage `json:"targets"`
	} `json:"panels"`
}

func main() {
	if err := check(os.Args[1]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func check(path string) error {
	// Panels of other types would be read without a schema.
	schemas := cog.NewRuntime()
	schemas.RegisterPanelcfgVariant(heatmap.VariantConfig())
	schemas.RegisterPanelcfgVariant(stat.VariantConfig())
	schemas.RegisterPanelcfgVariant(timeseries.VariantConfig())
	known := map[string]bool{"row": true, "heatmap": true, "stat": true, "timeseries": true}

	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var board dashboard.Dashboard
	if err := found(board.UnmarshalJSONStrict(text)); err != nil {
		return err
	}
	if err := found(board.Validate()); err != nil {
		return err
	}

	var raw queries
	if err := json.Unmarshal(text, &raw); err != nil {
		return err
	}
	count := 0
	for _, panel := range raw.Panels {
		if !known[panel.Type] {
			return fmt.Errorf("the panel %q has the type %s, whose schema is not loaded", panel.Title, panel.Type)
		}
		for _, target := range panel.Targets {
			var query prometheus.Dataquery
			if err := found(query.UnmarshalJSONStrict(target)); err != nil {
				return fmt.Errorf("a query of the panel %q: %w", panel.Title, err)
			}
			count++
		}
	}
	fmt.Printf("%d panels and %d queries are valid\n", len(board.Panels), count)
	return nil
}

// The error, unless it is an empty list, which the schema returns on success.
func found(err error) error {
	if err == nil || err.Error() == "" {
		return nil
	}
	return err
}
