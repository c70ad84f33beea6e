package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// commandGroups are the headings of 'lockfs --help'.
var commandGroups = []struct {
	title    string
	commands []string
}{
	{"Serve volumes", []string{"mount", "serve", "csi"}},
	{"Look", []string{"ls", "status"}},
	{"Locks", []string{"exec", "break"}},
	{"Volumes and machines", []string{"check-volume", "move", "cleanup"}},
	{"Other", []string{"version", "completion", "help"}},
}

// flagGroups are the headings of a command's help, after the flags that matter most.
var flagGroups = []struct {
	title string
	flags []string
}{
	{"Volume", []string{"name", "namespace", "policy", "rule", "set-policy", "former-policy", "former-rule", "former-flock", "scope", "read-locks", "flock", "allow-other"}},
	{"Lock service", []string{"backend", "endpoints", "cacert", "cert", "key", "user", "password-file", "password", "config", "credentials-dir", "embedded", "ttl", "keep"}},
	{"Waiting", []string{"wait", "name-wait", "suspend-wait"}},
	{"Safety", []string{"sync", "guard", "accept-volume", "take-over", "supervise"}},
	{"Kubernetes", []string{"kubelet-dir", "inline-volumes", "lease-namespace", "kubeconfig", "kube-qps", "kube-burst", "pod-names"}},
	{"Logging and monitoring", []string{"log-level", "log-format", "slow-wait", "http", "node"}},
}

// firstFlags are the flags of each command that matter most, in that order.
var firstFlags = map[string][]string{
	"mount":        {"endpoints", "backend", "name", "policy", "rule", "scope", "wait", "ttl", "sync", "read-locks"},
	"serve":        {"config", "credentials-dir", "state-dir", "http"},
	"csi":          {"config", "endpoint", "controller"},
	"ls":           {"output", "watch"},
	"exec":         {"wait", "conflict-exit-code", "shared", "ttl"},
	"break":        {"reason", "timeout", "force"},
	"move":         {"to", "gone"},
	"status":       {"output", "state-dir"},
	"check-volume": {"listen", "peer"},
}

// flagsUnder returns the headings of a command's help, and the flags under each.
func flagsUnder(cmd *cobra.Command) (titles []string, flags map[string]*pflag.FlagSet) {
	flags = make(map[string]*pflag.FlagSet)
	seen := map[string]bool{"help": true}
	add := func(title string, names []string) {
		for _, name := range names {
			f := cmd.Flags().Lookup(name)
			if f == nil || seen[name] {
				continue
			}
			seen[name] = true
			if flags[title] == nil {
				flags[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
				flags[title].SortFlags = false
				titles = append(titles, title)
			}
			flags[title].AddFlag(f)
		}
	}
	add("Flags", firstFlags[cmd.Name()])
	for _, g := range flagGroups {
		add(g.title, g.flags)
	}
	var rest []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { rest = append(rest, f.Name) })
	add("Other flags", rest)
	return titles, flags
}

func writeUsage(cmd *cobra.Command) error {
	w, width := cmd.OutOrStderr(), terminalWidth()
	line := cmd.UseLine()
	if cmd.HasAvailableSubCommands() {
		line = cmd.CommandPath() + " COMMAND"
	}
	fmt.Fprintf(w, "Usage:\n  %s\n", line)
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(w, "\nAlso: %s\n", strings.Join(cmd.Aliases, ", "))
	}
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	if !cmd.HasParent() {
		writeCommands(w, cmd)
		return nil
	}
	for _, c := range cmd.Commands() {
		fmt.Fprintf(w, "  %-13s %s\n", c.Name(), c.Short)
	}
	titles, flags := flagsUnder(cmd)
	for _, title := range titles {
		fmt.Fprintf(w, "\n%s:\n%s", title, flags[title].FlagUsagesWrapped(width))
	}
	if cmd.PreRunE != nil { // see bindEnv
		name := firstFlags[cmd.Name()][0]
		fmt.Fprintf(w, "\nEach flag has an environment variable: --%s is $%s. A flag overrides its variable.\n", name, envName(name))
	}
	return nil
}

func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:                   "help [COMMAND]",
		DisableFlagsInUseLine: true,
		Short:                 "Say more about a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, unknown, err := cmd.Root().Find(args)
			if err != nil || len(unknown) > 0 {
				return usage(fmt.Errorf("unknown command %q; see '%s --help'", strings.Join(args, " "), cmd.Root().Name()))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if len(args) == 0 {
				for _, c := range cmd.Root().Commands() {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// describeCompletion gives cobra's command a text, and a usage error, like those of the others.
func describeCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Short = "Print a script that completes commands in a shell"
			c.Long = "Print a script that completes the commands and flags of lockfs in a shell: bash, fish,\npowershell or zsh. 'lockfs completion SHELL --help' says how to load it."
			c.Args = cobra.ArbitraryArgs
			c.RunE = func(cmd *cobra.Command, _ []string) error {
				return usage(fmt.Errorf("want a shell: bash, fish, powershell or zsh; see '%s --help'", cmd.CommandPath()))
			}
		}
	}
}

func writeCommands(w io.Writer, root *cobra.Command) {
	for _, g := range commandGroups {
		fmt.Fprintf(w, "\n%s:\n", g.title)
		for _, name := range g.commands {
			i := slices.IndexFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == name })
			if i >= 0 {
				fmt.Fprintf(w, "  %-13s %s\n", name, root.Commands()[i].Short)
			}
		}
	}
	fmt.Fprintf(w, "\n'%s help COMMAND' says more about a command.\n", root.Name())
}

func terminalWidth() int {
	size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return 100
	}
	return min(max(int(size.Col), 60), 100)
}
