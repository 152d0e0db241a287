package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// validateFields applies the checks that the tags of the fields name: to each entry of a list, and not to an empty field that
// has no default.
func validateFields(c *NodeConfig, fs *faults) {
	for _, l := range c.leaves() {
		check := strings.Fields(l.tag.Get("check"))
		if _, required := l.tag.Lookup("default"); len(check) == 0 || l.value.IsZero() && !required {
			continue
		}
		if l.value.Kind() != reflect.Slice {
			checkValue(fs, l.path, l.value, check[0], check[1:])
			continue
		}
		for i := range l.value.Len() {
			checkValue(fs, fmt.Sprintf("%s[%d]", l.path, i), l.value.Index(i), check[0], check[1:])
		}
	}
}

// checkValue applies one check with its arguments to the value of a field.
func checkValue(fs *faults, field string, v reflect.Value, check string, args []string) {
	limit := func(i int) int64 { n, _ := strconv.ParseInt(args[i], 10, 64); return n }
	var (
		ok    bool
		fault string
	)
	switch check {
	case "IPv4", "IPv6":
		fault = rangeFault(v.String(), check, limit(0), limit(1))
		ok = fault == ""
	case "limit", "reservation":
		fault = quantityFault(v.String(), check, strings.Join(args, " "))
		ok = fault == ""
	case "oneof":
		ok, fault = slices.Contains(args, v.String()), fmt.Sprintf("%q: must be one of %s", v, strings.Join(args, ", "))
	case "range", "zeroOrRange":
		ok, fault = limit(0) <= v.Int() && v.Int() <= limit(1) || v.IsZero() && check != "range", fmt.Sprintf("%d: must be between %s and %s", v.Int(), args[0], args[1])
	case "min":
		ok, fault = limit(0) <= v.Int(), fmt.Sprintf("%d: must be at least %s", v.Int(), strings.Join(args, " "))
	case "positive":
		ok, fault = v.Int() > 0, fmt.Sprintf("%s: must be greater than zero", time.Duration(v.Int()))
	case "atLeast":
		least, _ := time.ParseDuration(args[0])
		ok, fault = time.Duration(v.Int()) >= least, fmt.Sprintf("%s: must be at least %s", time.Duration(v.Int()), args[0])
	case "path":
		ok, fault = isAbsolute(v.String()), fmt.Sprintf("%q: must be an absolute path without . or .. elements or a trailing slash", v)
	case "minor":
		ok, fault = isMinorVersion(v.String()), fmt.Sprintf("%q: must be a minor version such as v1.37", v)
	case "image":
		ok, fault = isImage(v.String()), fmt.Sprintf("%q: must be an image reference such as registry.example.com/name:tag", v)
	case "argument":
		ok, fault = strings.HasPrefix(v.String(), "--"), fmt.Sprintf("%q: must have the form --FLAG=VALUE", v)
	default:
		panic("config: unknown check of " + field)
	}
	if !ok {
		fs.add(field, "", "%s", fault)
	}
}

// isAbsolute reports whether p is a clean absolute path without control characters, which break mount tables and config files.
func isAbsolute(p string) bool {
	return filepath.IsAbs(p) && filepath.Clean(p) == p && !strings.ContainsFunc(p, isControl)
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// isMinorVersion reports whether s is a minor version of Kubernetes, v1.N or 1.N.
func isMinorVersion(s string) bool {
	minor, ok := strings.CutPrefix(strings.TrimPrefix(s, "v"), "1.")
	n, err := strconv.ParseUint(minor, 10, 16)
	return ok && err == nil && minor == strconv.FormatUint(n, 10)
}

// isImage is a coarse check of an image reference. The container runtime does the full check.
func isImage(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r == ' ' || isControl(r) || r == '"' || r == '\\' })
}
