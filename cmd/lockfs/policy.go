package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

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
	sources := []policy.Source{{Name: "--rule", Text: strings.Join(p.rules, "\n")}}
	if p.policyFile != "" {
		text, err := os.ReadFile(p.policyFile)
		if err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
		sources = append(sources, policy.Source{Name: p.policyFile, Text: string(text)})
	}
	return policy.Parse(sources...)
}
