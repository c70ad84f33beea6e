package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/lockfs/lockfs/bench/internal/command"
)

// child is this program in a hidden mode. It ends with its stdin, so it does not outlive us.
type child struct {
	cmd     *exec.Cmd
	life    io.Closer
	logName string
}

func startChild(mode, arg, logName string) (*child, error) {
	log, err := os.Create(logName)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", arg)
	cmd.Env = command.Environ(mode)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the terminal's SIGINT is for us
	life, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &child{cmd: cmd, life: life, logName: logName}, cmd.Start()
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) log() string {
	b, _ := os.ReadFile(c.logName)
	return string(b)
}

// kill is kill -9; it returns when the process is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// stop ends the child, by force if it must be.
func (c *child) stop() {
	c.life.Close()
	late := time.AfterFunc(stopTimeout, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	_ = c.cmd.Wait()
}

// parentEnds returns when the parent has closed our stdin, or has ended.
func parentEnds() { _, _ = io.Copy(io.Discard, os.Stdin) }

// memberConfig configures a member of etcd.
type memberConfig struct {
	Name, Dir    string
	Client, Peer string // URLs
	Cluster      string // as --initial-cluster
}

// serveMember is the hidden mode that is a member of etcd, with etcd's defaults.
func serveMember(args []string) error {
	go func() {
		parentEnds()
		os.Exit(0) // its files are removed
	}()
	if len(args) != 1 {
		return errors.New("want a configuration")
	}
	var m memberConfig
	if err := json.Unmarshal([]byte(args[0]), &m); err != nil {
		return err
	}
	client, err := url.Parse(m.Client)
	if err != nil {
		return err
	}
	peer, err := url.Parse(m.Peer)
	if err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialCluster = m.Name, m.Dir, m.Cluster
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.LogLevel, cfg.LogOutputs = "error", []string{"stderr"}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	return <-e.Err()
}
