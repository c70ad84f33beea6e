package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/policy"
	"github.com/lockfs/lockfs/renew"
)

// volumeFlags say which volume is meant, and where its locks are.
type volumeFlags struct {
	backendFlags
	configFlags     // registered by some commands only
	namespace, name string
	dial            etcdlock.DialConfig

	namespaceSet bool // by flag or environment; see reach
}

// ownService is where a volume's locks are for commands that start no embedded etcd.
const ownService = "what --config says, else the embedded etcd of this machine"

// register is told, for the help, the defaults of --name and --endpoints.
func (v *volumeFlags) register(fs *pflag.FlagSet, name, endpoints string) {
	fs.StringVar(&v.namespace, "namespace", "default", "`namespace` of the volume")
	fs.StringVar(&v.name, "name", "", "`name` of the volume (default: "+name+")")
	v.backendFlags.register(fs)
	fs.StringSliceVar(&v.dial.Endpoints, "endpoints", nil, "etcd `URLs`, separated by commas (default: "+endpoints+")")
	fs.StringVar(&v.dial.CAFile, "cacert", "", "`file` with the CA certificate that signed etcd's certificates")
	fs.StringVar(&v.dial.CertFile, "cert", "", "`file` with the client certificate for etcd")
	fs.StringVar(&v.dial.KeyFile, "key", "", "`file` with the private key of --cert")
	fs.StringVar(&v.dial.Username, "user", "", "etcd `user`")
	fs.StringVar(&v.dial.Password, "password", "", "`password` of --user. Other users of this machine can see flags: prefer --password-file or $LOCKFS_PASSWORD")
	fs.StringVar(&v.dial.PasswordFile, "password-file", "", "`file` with the password of --user. It is read again for each login")
}

// checkTTL refuses a TTL that is too short for the timings that are parts of it.
func checkTTL(ttl time.Duration) error {
	if (renew.Config{TTL: ttl}).Validate() != nil {
		return usage(fmt.Errorf("--ttl %v: want whole seconds, at least %v", ttl, renew.MinTTL))
	}
	return nil
}

// waitFlag is a duration, or -1: for ever.
type waitFlag time.Duration

func (w *waitFlag) String() string {
	if *w < 0 {
		return "-1"
	}
	return time.Duration(*w).String()
}

func (w *waitFlag) Type() string { return "duration" }

func (w *waitFlag) Set(s string) error {
	d, err := policy.ParseWait(s)
	if err != nil {
		return err
	}
	*w = waitFlag(d)
	return nil
}

// keepFlag is how long locks are kept; 0: not at all.
type keepFlag time.Duration

func (k *keepFlag) String() string { return time.Duration(*k).String() }

func (k *keepFlag) Type() string { return "duration" }

func (k *keepFlag) Set(s string) error {
	d, err := policy.ParseKeep(s)
	if err != nil {
		return err
	}
	*k = keepFlag(d)
	return nil
}

// choiceFlag is one of a few words.
type choiceFlag[T ~string] struct {
	value   T
	choices []T
}

func (c *choiceFlag[T]) String() string { return string(c.value) }

func (c *choiceFlag[T]) Type() string { return "string" }

func (c *choiceFlag[T]) Set(s string) error {
	if !slices.Contains(c.choices, T(s)) {
		return fmt.Errorf("want one of %s", c.list())
	}
	c.value = T(s)
	return nil
}

func (c *choiceFlag[T]) words() []string {
	words := make([]string, len(c.choices))
	for i, w := range c.choices {
		words[i] = string(w)
	}
	return words
}

func (c *choiceFlag[T]) list() string { return strings.Join(c.words(), "|") }

func complete(cmd *cobra.Command, flag string, words []string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // no such flag
	}
}
