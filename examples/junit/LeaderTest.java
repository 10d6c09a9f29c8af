import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class LeaderTest {
  static Quorumlog cluster;

  @BeforeAll
  static void up() throws Exception {
    cluster = new Quorumlog();
  }

  @AfterAll
  static void down() throws Exception {
    cluster.close();
  }

  @Test
  void ordersSurviveTheirLeader() throws Exception {
    var settings = Map.<String, Object>of("bootstrap.servers", cluster.bootstrap, "acks", "all");
    var text = new StringSerializer();
    try (var producer = new KafkaProducer<>(settings, text, text)) {
      for (long order = 0; order < 20; order++) {
        if (order == 10) {
          cluster.post("/v1/kill", "{\"target\": \"partition-leader\", \"topic\": \"orders\"}");
        }
        var sent = producer.send(new ProducerRecord<>("orders", 0, null, "order " + order));
        assertEquals(order, sent.get(30, TimeUnit.SECONDS).offset());
      }
    }
  }
}
