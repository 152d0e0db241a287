package main

import (
	"regexp"
	"strings"
)

// kind is where a block of text is from.
type kind int

const (
	goComment kind = 1 << iota
	goString
	markdown
	hash
	shellMessage
)

const comments = goComment | hash

// rule is an entry of the word list. A match whose capture group is not empty is allowed.
type rule struct {
	pattern *regexp.Regexp
	// write is the replacement, as a quoted phrase or a short instruction.
	write string
	// kinds are the texts to which the rule applies; 0 for all.
	kinds kind
}

// words compiles a pattern that matches whole words, in any case. A space in it matches the space between words of the same or of
// consecutive lines.
func words(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + strings.ReplaceAll(pattern, " ", `\s+`) + `)\b`)
}

// starts compiles a pattern for the start of a text or of a sentence. Questions do not match.
func starts(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[.;!]\s+)(?:` + strings.ReplaceAll(pattern, " ", `\s+`) + `)\b[^.?!]*?(?:(\?)|[.!;\n]|$)`)
}

// doc compiles a pattern for the words after the identifier at the start of a Go comment.
func doc(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z_][\w.]*\s+(?:` + strings.ReplaceAll(pattern, " ", `\s+`) + `)\b`)
}

var rules = []rule{
	{words(`tells? whether`), `"reports whether"`, 0},
	{words(`tells? (?:what|which|where|how|who|why|of|about)`), `"reports", "shows" or "describes"`, 0},
	{words(`(?:told|tells?|telling)(?: \S+){0,3} apart`), `"distinguish"`, 0},
	{words(`(?:is|are|was|were|be|been|being|has|have|had|not|told) told`), `"reported", "informed" or "configured"`, 0},
	{doc(`gives`), `"returns"`, goComment},
	{doc(`tells`), `"reports"`, goComment},
	{doc(`asks`), `the action: "requests", "queries", "calls"`, goComment},
	{doc(`says`), `"reports" or "returns"`, goComment},
	{words(`(there )?(?:is|are|was|were) none`), `"is not set", "is invalid" or "is not a ..."`, 0},
	{words(`(there )?(?:is|are|was|were) no( longer| more| different|-| such)?`), `"is not a", or start with "there is no"`, 0},
	{regexp.MustCompile(`(?i)(^nobody$|["'` + "`" + `]nobody["'` + "`" + `]|\bnobody:nogroup\b|\b(?:user|account|group) nobody\b)|\bnobody\b`), `"no process", "no user" or the missing subject`, 0},
	{words(`somebody|someone`), `"another process", "another user" or the subject`, 0},
	{words(`anybody|anyone|everybody`), `"any user", "any process" or the subject`, 0},
	{words(`whoever|whosoever`), `"the caller", "the user" or the subject`, 0},
	{words(`(?:is|are|of|for|with|from|by|and|but|or|than) what (?:is|was|are|were)`), `the subject: "X things", "the X ones"`, 0},
	{words(`the ones? (?:that|which|who)`), `the noun: "the process that"`, 0},
	{words(`anew`), `"again" or "from scratch"`, 0},
	{words(`ours|theirs`), `"rootlessnode's", "the node's", or nothing`, 0},
	{words(`our own`), `"rootlessnode's", "the node's", or nothing`, 0},
	{words(`for want of`), `"without" or "because there is no"`, 0},
	{words(`ways? out`), `"fix" or "workaround"`, 0},
	{words(`beside`), `"next to" or "in addition to"`, 0},
	{words(`((?:leave|leaves|left|leaving|let)(?: \S+){0,4} |stand-)?alone`), `"only"`, 0},
	{words(`(?:hand|hands|handed|handing)(?: it| them)? (?:on|over)`), `"pass" or "delegate"`, 0},
	{words(`by hand`), `"manually"`, 0},
	{words(`mend(?:s|ed|ing)?`), `"fix" or "repair"`, 0},
	{words(`stands? (?:in|on|at|there|beside|between|below|above)`), `"is in" or "is stored in"`, 0},
	{words(`go(?:es)? on`), `"continues"`, 0},
	{words(`as ever`), `"as before"`, 0},
	{words(`beforehand`), `"before", "in advance"`, 0},
	{words(`strangers?`), `"foreign" or "unknown"`, 0},
	{words(`promises?|promised`), `"condition" or "guarantee"`, 0},
	{words(`pictures?`), `"snapshot" or "view"`, 0},
	{words(`desks?`), `the noun: "port configuration"`, 0},
	{words(`strays?`), `the noun: "process in the wrong mount namespace"`, 0},
	{words(`(udevadm )?settle[sd]?`), `"decide", "arrange" or "become stable"`, 0},
	{words(`judge[sd]?|judging`), `"check" or "evaluate"`, 0},
	{words(`for good`), `"permanently"`, 0},
	{words(`in vain`), `"without success"`, 0},
	{words(`at the most`), `"at most"`, 0},
	{words(`long in coming`), `"slow"`, 0},
	{words(`all the same`), `"anyway" or "still"`, 0},
	{words(`(?:take|takes|taken|took) back|(?:take|takes|taken|took) (?:it|them) back`), `"remove", "release" or "undo"`, 0},
	{words(`(?:bring|brings|brought)(?: \S+){0,3} along`), `"include"`, 0},
	{words(`is in between`), `what happens: "possible man in the middle"`, 0},
	{words(`cover one another`), `"overlap"`, 0},
	{words(`more than nothing`), `"must be greater than zero"`, 0},
	{words(`and so (?:does|do|is|are|has|have|did|was|were) (?:not|no|its|the|a)`), `"also", or two sentences`, 0},
	{words(`knows? (?:nothing )?of`), `"uses", "has" or "supports"`, 0},
	{words(`tells?|told|telling`), `"reports", "informed" or "configured"`, comments},
	{words(`says? so`), `"reports it"`, comments},
	{words(`(?:is|are|was|were|be) asked`), `"is requested" or "is queried"`, 0},
	{words(`(?:is|are) what`), `the noun: "has", "holds", "lists"`, comments},
	{words(`lies (?:in|on|at|below|above)`), `"is in"`, 0},
	{words(`does not mind`), `"is not affected"`, 0},
	{words(`(?:take|takes|took|taken) away`), `"remove"`, 0},
	{words(`whence|whither|thence|thither|hither|hitherto|lest|therein|thereupon|whereupon|hereby|wherein|thereof`), `a modern word`, 0},
	{starts(`[Ww]ho`), `the subject: "the caller", "the user"`, 0},
	{starts(`What (?:is|was|are|were|has|had|it|they|the|a|an|cannot|can|may|must|does|comes?|remains|nobody|only|one)`), `the subject: "X things", "the X ones"`, 0},
}

// allowance lets one phrase stay in one file.
type allowance struct {
	file, found, why string
}

// allowed are phrases that must stay as they are, for lines that cannot have a comment. An empty phrase stands for all of the file.
var allowed = []allowance{
	{"test/words/rules.go", "", "the word list"},
	{"test/words/check_test.go", "", "planted findings"},
	{"test/conformance/expectations.yaml", "ours", "the kind ours"},
	{"test/conformance/internal/outcome/expectations_test.go", "ours", "the kind ours"},
	{"test/conformance/internal/outcome/verdict.go", "ours", "the kind ours"},
	{"test/conformance/internal/outcome/verdict_test.go", "ours", "the kind ours"},
	{"test/conformance/run_test.go", "ours", "the kind ours"},
	{"test/conformance/internal/images/debian.go", "nobody", "the account nobody"},
	{"test/scripts/collect_test.go", "nobody", "the account nobody"},
	{"hack/vm.sh", "is told", "part of a unit file: a change would create the machine's root file system again"},
}
