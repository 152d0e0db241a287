package outcome

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Report is the content of a summary page. Sections without content are omitted.
type Report struct {
	Title   string
	Verdict Verdict
	Run     Run
	// Changes are the changes since the last run.
	Changes []Change
	Sets    []SetFigures
	// Facts are names and values that describe the run: versions, machine, date.
	Facts [][2]string
}

// changeLimit is the largest number of listed changes. A new suite can add and remove thousands of specs.
const changeLimit = 100

// cellLimit is the largest length of a message in a table, in bytes.
const cellLimit = 300

// WriteMarkdown writes the summary page in GitHub Flavored Markdown.
func WriteMarkdown(w io.Writer, r Report) error {
	// Render to a buffer, so that only one write can fail.
	p := &page{}
	p.printf("# %s\n\n%s\n", escape(r.Title), headline(r.Verdict))
	p.facts(r)
	p.sets(r.Sets)
	p.failures(r.Verdict)
	p.listFaults(r.Verdict)
	p.flakes(r.Verdict)
	p.changes(r.Changes)
	p.skipped(r.Run)
	if _, err := w.Write(p.Bytes()); err != nil {
		return fmt.Errorf("write summary %q: %w", r.Title, err)
	}
	return nil
}

func headline(v Verdict) string {
	counts := fmt.Sprintf("%d passed, %d failed, %d skipped.", v.Passed, v.Failed, v.Skipped)
	if !v.OK() {
		return fmt.Sprintf("**Not as expected:** %d unexpected failures, %d listed as failing but passed, %d stale entries. %s",
			len(v.Unexpected), len(v.Passing), len(v.Stale)+len(v.StaleFlakes), counts)
	}
	return "**As expected.** " + counts
}

// page is a buffer for the page.
type page struct{ bytes.Buffer }

func (p *page) printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// table writes a table, or nothing if there are no rows. Cells are Markdown: the caller must escape other text.
func (p *page) table(title string, head []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	if title != "" {
		p.printf("\n## %s\n", title)
	}
	p.printf("\n| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat(" --- |", len(head)))
	for _, row := range rows {
		p.printf("| %s |\n", strings.Join(row, " | "))
	}
}

func (p *page) facts(r Report) {
	var rows [][]string
	for _, f := range r.Facts {
		rows = append(rows, []string{escape(f[0]), escape(f[1])})
	}
	if r.Run.Elapsed > 0 {
		rows = append(rows, []string{"Duration", r.Run.Elapsed.Round(time.Second).String()})
	}
	if sum := Figures("", r.Run, nil).Duration; sum > 0 {
		rows = append(rows, []string{"Total time of all specs", sum.Round(time.Second).String()})
	}
	p.table("", []string{"Fact", "Value"}, rows)
}

func (p *page) sets(sets []SetFigures) {
	var rows [][]string
	for _, f := range sets {
		row := []string{escape(f.Name)}
		for _, n := range []int{f.Selected, f.Passed, f.Failed, f.Skipped, f.Flaked} {
			row = append(row, fmt.Sprint(n))
		}
		rows = append(rows, append(row, f.Percent(), f.Duration.Round(time.Second).String()))
	}
	p.table("Figures", []string{"Set", "Selected", "Passed", "Failed", "Skipped", "Flaked", "Passed (without skipped)",
		"Total time"}, rows)
}

func (p *page) failures(v Verdict) {
	var rows [][]string
	for _, f := range v.Unexpected {
		kind := "not listed"
		if f.Expectation.Kind != "" {
			kind += " for this machine (" + escape(string(f.Expectation.Kind)) + ")"
		}
		rows = append(rows, []string{escape(f.Spec.Name), "**" + kind + "**", brief(f.Spec.Message)})
	}
	kinds := map[Kind]bool{}
	for _, f := range v.Expected {
		x := f.Expectation
		kinds[x.Kind] = true
		rows = append(rows, []string{escape(f.Spec.Name), escape(string(x.Kind)), reason(x)})
	}
	p.table("Failing", []string{"Spec", "Kind", "Reason"}, rows)
	if len(kinds) > 0 {
		p.printf("\n")
	}
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		p.printf("- %s: %s\n", escape(string(k)), k.meaning())
	}
}

// listFaults writes the entries of the list that do not match the run.
func (p *page) listFaults(v Verdict) {
	var rows [][]string
	add := func(spec, problem, why string) {
		rows = append(rows, []string{escape(spec), problem, why})
	}
	for _, x := range v.Passing {
		add(x.Spec, "**listed as failing, passed**", reason(x))
	}
	for _, x := range v.Stale {
		add(x.Spec, "**listed as failing, not in the set**", reason(x))
	}
	for _, x := range v.StaleFlakes {
		add(x.Spec, "**listed as a flake, not in the set**", escape(x.Reason))
	}
	for _, x := range v.Skipping {
		add(x.Spec, "listed as failing, skipped itself", reason(x))
	}
	p.table("Entries that do not match the run", []string{"Spec", "Entry", "Reason"}, rows)
}

func (p *page) flakes(v Verdict) {
	var rows [][]string
	for _, s := range v.NewFlakes {
		rows = append(rows, []string{escape(s.Name), "**new**", brief(s.Message)})
	}
	for _, f := range v.Flakes {
		rows = append(rows, []string{escape(f.Spec.Name), escape(f.Reason), brief(f.Spec.Message)})
	}
	p.table("Passed at the second try", []string{"Spec", "Reason", "First failure"}, rows)
}

func (p *page) changes(changes []Change) {
	// Sort specs that got worse first, and keep the order otherwise.
	sorted := slices.Clone(changes)
	rank := func(c Change) int {
		switch {
		case c.To == Failed:
			return 0
		case c.To == Absent || c.To == Flaked || c.To == Skipped:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(sorted, func(a, b Change) int { return cmp.Compare(rank(a), rank(b)) })
	var rows [][]string
	for _, c := range sorted[:min(len(sorted), changeLimit)] {
		rows = append(rows, []string{escape(c.Spec), escape(string(c.From)), escape(string(c.To))})
	}
	p.table("Changes since the last run", []string{"Spec", "Before", "Now"}, rows)
	if more := len(changes) - len(rows); more > 0 {
		p.printf("\n…and %d more.\n", more)
	}
}

// skipped lists the skipped specs, grouped by the first line of the message, the largest group first. The names are in a closed details
// element.
func (p *page) skipped(run Run) {
	groups := map[string][]string{}
	total := 0
	for _, s := range run.Specs {
		if s.State == Skipped {
			why := cmp.Or(firstLine(s.Message), "no reason given")
			groups[why] = append(groups[why], s.Name)
			total++
		}
	}
	if total == 0 {
		return
	}
	p.printf("\n## Skipped\n\n%d specs skipped themselves.\n", total)
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(groups[b]), len(groups[a])), cmp.Compare(a, b))
	})
	for _, why := range keys {
		p.printf("\n<details><summary>%d: %s</summary>\n\n", len(groups[why]), escapeHTML(shorten(why, cellLimit)))
		for _, name := range groups[why] {
			p.printf("- %s\n", escape(name))
		}
		p.printf("\n</details>\n")
	}
}

func brief(message string) string {
	return escape(shorten(firstLine(message), cellLimit))
}

func reason(x Expectation) string {
	if x.Link == "" {
		return escape(x.Reason)
	}
	target := strings.NewReplacer(" ", "%20", "(", "%28", ")", "%29", "|", "%7C", "<", "%3C", ">", "%3E", "\n", "", "\r", "").
		Replace(x.Link)
	return escape(x.Reason) + " ([source](" + target + "))"
}

// escape returns text for a table cell or a list item: on one line, without markup and without the end of a cell. Brackets are escaped only
// if they would create a link, because every spec name begins with a bracket and the page is also read as plain text.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\\`, "|", `\|`, "`", "\\`", "*", `\*`, "_", `\_`, "~", `\~`, "](", `\](`, "][", `\][`,
		"&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
	return strings.Join(strings.Fields(s), " ")
}

// escapeHTML escapes a line in a details element, which GitHub does not render as Markdown.
func escapeHTML(s string) string {
	s = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
	return strings.Join(strings.Fields(s), " ")
}
