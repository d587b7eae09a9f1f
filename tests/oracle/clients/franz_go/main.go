// Drives franz-go as plan.py says: steps on stdin, answers on stdout. Errors have the names of Kafka's error codes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	maxRequestBytes = 10_000_000
)

type step struct {
	Do                string            `json:"do"`
	Seconds           int               `json:"seconds"`
	Topic             string            `json:"topic"`
	Partition         int32             `json:"partition"`
	Codec             string            `json:"codec"`
	Acks              string            `json:"acks"`
	Idempotent        bool              `json:"idempotent"`
	Records           []sentRecord      `json:"records"`
	Offset            int64             `json:"offset"`
	Count             int               `json:"count"`
	Partitions        int32             `json:"partitions"`
	ReplicationFactor int16             `json:"replication_factor"`
	Configs           map[string]string `json:"configs"`
}

// A []byte is base64 text in JSON, nil is null: just what the plan says.
type header struct {
	name  string
	value []byte
}

func (h *header) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&h.name, &h.value})
}

func (h header) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{h.name, h.value})
}

type sentRecord struct {
	key, value  []byte
	timestampMs int64
	headers     []header
}

func (r *sentRecord) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&r.key, &r.value, &r.timestampMs, &r.headers})
}

var (
	codecs = map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	acks = map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}
)

func produce(ctx context.Context, bootstrap string, s step) (any, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[s.Codec]),
		kgo.RequiredAcks(acks[s.Acks]),
		kgo.ProducerBatchMaxBytes(maxRequestBytes),
		kgo.ProducerLinger(20 * time.Millisecond),
		kgo.RecordRetries(3),
		kgo.UnknownTopicRetries(2),
	}
	if !s.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	records := make([]*kgo.Record, 0, len(s.Records))
	for _, r := range s.Records {
		record := &kgo.Record{
			Topic: s.Topic, Partition: s.Partition, Key: r.key, Value: r.value, Timestamp: time.UnixMilli(r.timestampMs),
		}
		for _, h := range r.headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: h.name, Value: h.value})
		}
		records = append(records, record)
	}
	results := client.ProduceSync(ctx, records...)
	if err := results.FirstErr(); err != nil {
		return nil, err
	}
	offsets := make([]int64, 0, len(results))
	for _, result := range results {
		offset := result.Record.Offset
		if s.Acks == "0" {
			offset = -1
		}
		offsets = append(offsets, offset)
	}
	return map[string]any{"offsets": offsets}, nil
}

func consume(ctx context.Context, bootstrap string, s step) (any, error) {
	from := kgo.NewOffset().At(s.Offset)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.Topic: {s.Partition: from}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	records := [][]any{}
	for len(records) < s.Count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			headers := []header{}
			for _, h := range r.Headers {
				headers = append(headers, header{h.Key, h.Value})
			}
			records = append(records, []any{r.Offset, r.Timestamp.UnixMilli(), r.Key, r.Value, headers})
		})
	}
	return map[string]any{"records": records}, nil
}

func create(ctx context.Context, bootstrap string, s step) (any, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	configs := map[string]*string{}
	for key, value := range s.Configs {
		configs[key] = &value
	}
	_, err = kadm.NewClient(client).CreateTopic(ctx, s.Partitions, s.ReplicationFactor, configs, s.Topic)
	return map[string]any{}, err
}

func answer(bootstrap string, s step) any {
	handlers := map[string]func(context.Context, string, step) (any, error){
		"produce": produce, "consume": consume, "create": create,
	}
	handler := handlers[s.Do]
	if handler == nil {
		return map[string]string{"unable": "it has no " + s.Do}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.Seconds+2)*time.Second)
	defer cancel()
	done, err := handler(ctx, bootstrap, s)
	if err == nil {
		return done
	}
	name := fmt.Sprintf("%T", err)
	var known *kerr.Error
	switch {
	case errors.As(err, &known):
		name = known.Message
	case errors.Is(err, context.DeadlineExceeded):
		name = "DeadlineExceeded"
	}
	return map[string]string{"error": name, "message": err.Error()}
}

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var s step
		if err := json.Unmarshal(line, &s); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := answers.Encode(answer(os.Args[1], s)); err != nil {
			os.Exit(1)
		}
	}
}
