package main

import (
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// logFlags say what is logged, and in which format.
type logFlags struct {
	format, level choiceFlag[string]
}

func newLogFlags() logFlags {
	return logFlags{
		format: choiceFlag[string]{"text", []string{"text", "json"}},
		level:  choiceFlag[string]{"info", []string{"debug", "info", "warn", "error"}},
	}
}

func (l *logFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&l.format, "log-format", "`format` of the log: "+l.format.list())
	f.Var(&l.level, "log-level", "lowest `level` that is logged: "+l.level.list()+". debug logs each lock from the request to the release")
	complete(cmd, "log-format", l.format.words())
	complete(cmd, "log-level", l.level.words())
}

// logger is for daemons, which go on when nobody reads their log any more.
func (l *logFlags) logger() *slog.Logger {
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // else Go ends the process at the next line
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level.value)); err != nil {
		panic(err) // it is one of the choices
	}
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: secondsOf}
	if l.format.value == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}

// secondsOf prints a duration as seconds with a unit: slog's JSON has plain nanoseconds.
func secondsOf(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindDuration {
		return a
	}
	return slog.Float64(a.Key+"_seconds", a.Value.Duration().Seconds())
}
