// Writes with franz-go: servers, topic, values; then, with a transactional id, each value that
// begins with "aborted" in a transaction that is aborted, and each other in one that is committed.
package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func client(ctx context.Context, options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(os.Args[1]))...)
	check(err)
	return made
}

func record(value string) *kgo.Record {
	return &kgo.Record{Topic: os.Args[2], Value: []byte(value)}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	values := strings.Split(os.Args[3], ",")
	plain := client(ctx)
	for _, value := range values {
		check(plain.ProduceSync(ctx, record(value)).FirstErr())
	}
	plain.Close()
	transactional := client(ctx, kgo.TransactionalID("franz-go"))
	for _, value := range values {
		check(transactional.BeginTransaction())
		check(transactional.ProduceSync(ctx, record("tx "+value)).FirstErr())
		end := kgo.TryCommit
		if strings.HasPrefix(value, "aborted") {
			end = kgo.TryAbort
		}
		check(transactional.EndTransaction(ctx, end))
	}
	transactional.Close()
}
