// One member of a group with franz-go, as clients/group_member.py has it: settings in the argument, events on stdout.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	clockMonotonic = 1
	pollTime       = 100 * time.Millisecond
)

var settings struct {
	Bootstrap string `json:"bootstrap"`
	Group     string `json:"group"`
	Topic     string `json:"topic"`
	SessionMs int    `json:"session_ms"`
	Protocol  string `json:"protocol"`
	Assignor  string `json:"assignor"`
	Instance  string `json:"instance"`
}

var balancers = map[string]func() kgo.GroupBalancer{
	"range": kgo.RangeBalancer, "roundrobin": kgo.RoundRobinBalancer, "sticky": kgo.StickyBalancer,
	"cooperative-sticky": kgo.CooperativeStickyBalancer,
	// Of the consumer protocol: franz-go takes the broker's uniform assignor for its own sticky one.
	"uniform": kgo.StickyBalancer,
}

var printing sync.Mutex

// The monotonic clock of the machine, which Python's time.monotonic_ns() reads, too. Go keeps its own to itself.
func nowNs() int64 {
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		panic(errno)
	}
	return now.Nano()
}

func note(event string, values ...any) {
	printing.Lock()
	defer printing.Unlock()
	words := strings.TrimSuffix(fmt.Sprintln(values...), "\n")
	fmt.Printf("%d %s %s\n", nowNs(), event, words)
}

func noting(event string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, found map[string][]int32) {
		values := []any{}
		slices.Sort(found[settings.Topic])
		for _, partition := range found[settings.Topic] {
			values = append(values, partition)
		}
		note(event, values...)
	}
}

func main() {
	if err := json.Unmarshal([]byte(os.Args[1]), &settings); err != nil {
		panic(err)
	}
	assignor := settings.Assignor
	options := []kgo.Opt{
		kgo.SeedBrokers(settings.Bootstrap),
		kgo.ConsumerGroup(settings.Group),
		kgo.ConsumeTopics(settings.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(pollTime),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(noting("assigned")),
		kgo.OnPartitionsRevoked(noting("revoked")),
		kgo.OnPartitionsLost(noting("lost")),
	}
	if settings.Protocol == "consumer" {
		if assignor == "" {
			assignor = "uniform"
		}
		options = append(options, kgo.ServerSideBalancer())
	} else {
		if assignor == "" {
			assignor = "range"
		}
		session := time.Duration(settings.SessionMs) * time.Millisecond
		options = append(options, kgo.SessionTimeout(session), kgo.HeartbeatInterval(session/5))
	}
	options = append(options, kgo.Balancers(balancers[assignor]()))
	if settings.Instance != "" {
		options = append(options, kgo.InstanceID(settings.Instance))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	var isStopped atomic.Bool
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		isStopped.Store(true)
	}()
	for !isStopped.Load() {
		poll(client)
	}
	client.CloseAllowingRebalance()
	note("closed")
}

// poll reads and commits; a rebalance waits until that is done.
func poll(client *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), pollTime)
	defer cancel()
	fetches := client.PollFetches(ctx)
	defer client.AllowRebalance()
	fetches.EachError(func(_ string, _ int32, err error) {
		if ctx.Err() == nil {
			note("error", err)
		}
	})
	fetches.EachRecord(func(record *kgo.Record) { note("read", record.Partition, record.Offset) })
	if fetches.NumRecords() > 0 {
		if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
			note("error", err)
		}
	}
}
