package nettest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stopTimeout is how long a process that was asked to stop may take, before it is killed.
const stopTimeout = 10 * time.Second

// Process is a child that must not outlive the test, not even one that is killed.
type Process struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	output syncBuffer
}

// Start runs cmd until the test ends.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	cmd.WaitDelay = time.Second
	started := make(chan error, 1)
	go func() {
		// The death signal is sent when the thread that forked ends, which need not be the process's end: hence a
		// thread that stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Pid returns the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Output returns what the process has printed so far, to either of its streams.
func (p *Process) Output() string { return p.output.String() }

// Kill ends the process at once.
func (p *Process) Kill() error { return p.signal(syscall.SIGKILL) }

// Stop lets the process end in an orderly way.
func (p *Process) Stop() error { return p.signal(syscall.SIGTERM) }

// ExitCode returns the code that the process ended with, or -1 if a signal ended it or it still runs.
func (p *Process) ExitCode() int {
	if p.Running() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// signal ends the process and waits for its end.
func (p *Process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.cmd.Path, err)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopTimeout):
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
	return fmt.Errorf("%s did not end within %v and was killed", p.cmd.Path, stopTimeout)
}

// Running tells whether the process has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// syncBuffer may be read while a process still writes to it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
