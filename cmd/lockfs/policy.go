package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockfs/lockfs/internal/supervise"
	"github.com/lockfs/lockfs/policy"
)

// policyFlags are the rules of the volume's policy.
type policyFlags struct {
	policyFile string
	rules      []string
}

func (p *policyFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&p.policyFile, "policy", "", "`file` with rules, one per line: "+policy.Form+". The first rule that matches a path applies. All mounts of a volume need the same rules")
	fs.StringArrayVar(&p.rules, "rule", nil, "a `rule` ahead of those in --policy. Can be repeated; in the environment, one per line")
}

func (p *policyFlags) readPolicy() (*policy.Policy, error) {
	return readPolicy("", p.policyFile, p.rules)
}

// readPolicy reads the rules of two flags, whose names begin with a prefix.
func readPolicy(prefix, file string, rules []string) (*policy.Policy, error) {
	sources := []policy.Source{{Name: "--" + prefix + "rule", Text: strings.Join(rules, "\n")}}
	if file != "" {
		text, err := supervise.Self().ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--%spolicy: %w", prefix, err)
		}
		sources = append(sources, policy.Source{Name: file, Text: text})
	}
	return policy.Parse(sources...)
}

// formerFlags are the policy that is enforced too, while it changes.
type formerFlags struct {
	policyFile string
	rules      []string
	flock      choiceFlag[policy.Flock]
	flags      *pflag.FlagSet
}

// former is the prefix of their names.
const former = "former-"

func (p *formerFlags) register(fs *pflag.FlagSet) {
	p.flags = fs
	fs.StringVar(&p.policyFile, former+"policy", "", "`file` with the rules from which the policy of the volume changes to --policy and --rule. The mount enforces both: for each path, the stricter rule. A file without rules: everything was locked")
	fs.StringArrayVar(&p.rules, former+"rule", nil, "a `rule` ahead of those in --former-policy. Can be repeated; in the environment, one per line")
	fs.Var(&p.flock, former+"flock", "the --flock that is enforced too: "+p.flock.list()+" (default: as --flock). Alone, it leaves the rules as they are")
}

// terms returns nil if none of the flags is given. What is not given is as in the terms of now.
func (p *formerFlags) terms(now policy.Terms) (*policy.Terms, error) {
	given := func(name string) bool { return p.flags.Changed(former + name) }
	rules := given("policy") || given("rule")
	if !rules && !given("flock") {
		return nil, nil
	}
	was := &policy.Terms{Policy: now.Policy, Flock: cmp.Or(p.flock.value, now.Flock)}
	if rules {
		var err error
		if was.Policy, err = readPolicy(former, p.policyFile, p.rules); err != nil {
			return nil, err
		}
	}
	return was, nil
}
