package semantics

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// provedIn has the files, below integration/, with the tests that docs/SEMANTICS.md names below
// each of its rules.
var provedIn = map[int][]string{
	1:  {"semantics/exclusion_test.go", "faults/undisturbed_test.go"},
	2:  {"semantics/exclusion_test.go"},
	3:  {"semantics/exclusion_test.go", "semantics/close_matrix_test.go"},
	4:  {"semantics/exclusion_test.go", "semantics/mixed_test.go", "semantics/links_wait_test.go", "semantics/errors_test.go", "semantics/delegated_kinds_test.go"},
	5:  {"semantics/exclusion_test.go", "semantics/interrupts_test.go", "semantics/interrupts_random_test.go", "semantics/errors_test.go"},
	6:  {"semantics/replace_test.go", "semantics/fresh_replies_test.go", "semantics/volume_test.go"},
	7:  {"semantics/replace_test.go", "semantics/clients_test.go", "semantics/links_test.go"},
	8:  {"semantics/replace_test.go", "semantics/names_test.go", "semantics/stale_test.go", "semantics/names_fault_test.go", "semantics/names_frozen_test.go", "semantics/links_test.go", "semantics/links_race_test.go"},
	9:  {"semantics/replace_test.go"},
	10: {"semantics/fenced_test.go", "semantics/suspend_test.go", "semantics/loss_test.go", "semantics/volume_test.go", "faults/process_test.go"},
	11: {"semantics/fenced_test.go", "faults/outages_test.go", "faults/auth_test.go"},
	12: {"semantics/fenced_test.go", "semantics/successor_test.go", "faults/process_test.go"},
	13: {"semantics/fenced_test.go", "daemon/serve_test.go"},
	14: {"semantics/volume_refused_test.go", "semantics/folding_test.go", "commands/cli_test.go", "commands/move_test.go"},
	15: {"semantics/fresh_test.go", "semantics/volume_below_test.go", "semantics/replace_test.go", "semantics/numbers_test.go", "semantics/volume_test.go", "semantics/fresh_replies_test.go", "programs/programs_test.go", "semantics/stale_test.go"},
	16: {"semantics/fidelity_test.go", "semantics/attack_test.go", "semantics/names_test.go"},
	17: {"semantics/attr_test.go"},
	18: {"semantics/rights_test.go", "semantics/fidelity_test.go", "semantics/attr_test.go", "semantics/quota_test.go"},
	19: {"semantics/sync_test.go", "semantics/volume_sync_test.go", "semantics/full_test.go"},
	20: {"semantics/lockattr_test.go", "faults/majority_test.go"},
	21: {"semantics/policy_view_test.go", "commands/policy_test.go"},
	22: {"semantics/policy_view_test.go"},
	23: {"semantics/policy_view_test.go"},
	24: {"semantics/readlocks_test.go"},
	25: {"semantics/volume_test.go", "semantics/break_frozen_test.go", "commands/break_test.go"},
	26: {"commands/exec_test.go"},
	27: {"commands/guard_test.go", "daemon/serve_test.go", "cluster/main_test.go", "handover/open_test.go", "handover/load_test.go", "handover/hostile_test.go", "handover/flock_test.go", "handover/flockwaits_test.go", "handover/etcd_test.go", "handover/shown_test.go", "handover/away_test.go", "handover/deaths_test.go", "handover/calls_test.go", "programs/deaths_test.go"},
	28: {"daemon/hung_test.go", "daemon/serve_test.go"},
	29: {"semantics/claim_test.go"},
	30: {"semantics/remount_test.go", "semantics/volume_test.go"},
	31: {"semantics/kept_test.go", "semantics/delegated_kinds_test.go", "faults/undisturbed_test.go", "commands/policy_test.go"},
	32: {"semantics/flock_test.go", "programs/flock_test.go", "programs/flock_libraries_test.go", "commands/policy_test.go", "faults/ranges_test.go", "semantics/flock_leases_test.go"},
	33: {"semantics/delegated_test.go", "semantics/delegated_kinds_test.go", "faults/undisturbed_test.go", "faults/delegated_test.go", "commands/policy_test.go", "daemon/serve_delegated_test.go"},
}

// withoutRule has the files here that prove no rule, and what they are for.
var withoutRule = map[string]string{
	"backing_test.go":     "volumes with faults, for tests of several rules",
	"descriptors_test.go": "a limit: how few descriptors the daemon can do with",
	"grace_test.go":       "how a mount begins while the volume's server recovers",
	"handle_test.go":      "a limit: file handles of an earlier mount",
	"leftover_test.go":    "that a view leaves no files of its client's on the volume",
	"longpaths_test.go":   "the errors of paths that are too long",
	"main_test.go":        "the package's main function",
	"removed_test.go":     "a limit: the space of files that were removed elsewhere",
	"requests_test.go":    "what a view costs the volume",
	"rules_test.go":       "the map from rules to files",
}

// Each rule has files, those with the tests that the document names; each file here has a rule,
// or a reason.
func TestEachRuleHasAFile(t *testing.T) {
	inFile := make(map[string][]string) // tests, by file
	files, err := filepath.Glob("../*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declared.FindAllSubmatch(source, -1) {
			name := strings.TrimPrefix(filepath.ToSlash(file), "../")
			inFile[name] = append(inFile[name], string(m[1]))
		}
	}
	named := testsOfRules(t)
	if len(named) != len(provedIn) {
		t.Errorf("the document has %d rules, the map %d", len(named), len(provedIn))
	}
	proves := make(map[string]bool)
	for rule, tests := range named {
		proved := provedIn[rule]
		if len(proved) == 0 {
			t.Errorf("no file proves rule %d", rule)
		}
		for _, file := range proved {
			proves[file] = true
			if !slices.ContainsFunc(inFile[file], func(test string) bool { return slices.Contains(tests, test) }) {
				t.Errorf("%s has none of the tests of rule %d: %v", file, rule, tests)
			}
		}
		for file, its := range inFile {
			if i := slices.IndexFunc(its, func(test string) bool { return slices.Contains(tests, test) }); i >= 0 && !slices.Contains(proved, file) {
				t.Errorf("%s has %s of rule %d: say so in the map", file, its[i], rule)
			}
		}
	}
	own, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range own {
		if reason := withoutRule[file]; proves["semantics/"+file] == (reason != "") {
			t.Errorf("%s: it proves a rule: %v; what it is for otherwise: %q; want one of them", file, proves["semantics/"+file], reason)
		}
	}
	for file := range withoutRule {
		if !slices.Contains(own, file) {
			t.Errorf("there is no %s", file)
		}
	}
}

// testsOfRules returns the integration tests that the document names below each rule.
func testsOfRules(t *testing.T) map[int][]string {
	t.Helper()
	document, err := os.ReadFile("../../docs/SEMANTICS.md")
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(document), "## Errors that programs see")
	rule := regexp.MustCompile(`(?ms)^\*\*(\d+)\. .*?^Tests: (.*?)\n\n`)
	test := regexp.MustCompile("`(?:([a-z]+): )?(Test\\w+)")
	named := make(map[int][]string)
	for _, m := range rule.FindAllStringSubmatch(text, -1) {
		number, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range test.FindAllStringSubmatch(m[2], -1) {
			if n[1] == "" { // a unit test has its package before it
				named[number] = append(named[number], n[2])
			}
		}
	}
	return named
}
