package orders

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestOrdersSurviveTheirLeader(t *testing.T) {
	cluster := up(t)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(cluster.Bootstrap, ",")...),
		kgo.AllowAutoTopicCreation(),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for order := int64(0); order < 20; order++ {
		if order == 10 {
			cluster.post(t, "/v1/kill", `{"target": "partition-leader", "topic": "orders"}`)
		}
		record := &kgo.Record{Topic: "orders", Value: fmt.Appendf(nil, "order %d", order)}
		sent, err := client.ProduceSync(ctx, record).First()
		if err != nil || sent.Offset != order {
			t.Fatalf("order %d is at offset %d: %v", order, sent.Offset, err)
		}
	}
}
