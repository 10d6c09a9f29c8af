import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java client in a case of tools/client_errors.py, with its defaults, acks=all and manual
 * commits. Arguments: bootstrap, records, the attempts at a commit, the limit of a command in s.
 * Commands on standard input, each answered with one line, tab-separated: acknowledged values with
 * "+", errors with "-".
 *
 *   send TOPIC       send the records, five at a time
 *   transact TOPIC   the same in one transaction
 *   read TOPIC       read all records of partition 0
 *   group TOPIC      read and commit them as a member of a group; then `poll`, and `leave`
 */
class ClientErrors {
    private final String bootstrap;
    private final int records;
    private final int attempts;
    private KafkaConsumer<String, String> member;

    ClientErrors(String bootstrap, int records, int attempts) {
        this.bootstrap = bootstrap;
        this.records = records;
        this.attempts = attempts;
    }

    public static void main(String[] args) throws Exception {
        var client = new ClientErrors(args[0], Integer.parseInt(args[1]), Integer.parseInt(args[2]));
        int limitS = Integer.parseInt(args[3]);
        ExecutorService threads = Executors.newCachedThreadPool(task -> {
            var thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            Future<List<String>> done = threads.submit(() -> client.perform(words));
            List<String> answer;
            try {
                answer = done.get(limitS, TimeUnit.SECONDS);
            } catch (TimeoutException error) {
                answer = List.of("-not done in " + limitS + " s");
                client.member = null;
            } catch (ExecutionException error) {
                answer = List.of("-" + code(error.getCause()));
            }
            System.out.println(String.join("\t", answer));
        }
    }

    private List<String> perform(String[] words) {
        return switch (words[0]) {
            case "send" -> send(words[1], false);
            case "transact" -> send(words[1], true);
            case "read" -> read(words[1]);
            case "group" -> join(words[1]);
            case "poll" -> poll();
            case "leave" -> leave();
            default -> throw new IllegalArgumentException("no command " + words[0]);
        };
    }

    private List<String> send(String topic, boolean inTransaction) {
        Map<String, Object> settings = settings();
        settings.put("acks", "all");
        if (inTransaction) {
            settings.put("transactional.id", "id of " + topic);
        }
        var answer = new ArrayList<String>();
        var text = new StringSerializer();
        try (var producer = new KafkaProducer<String, String>(settings, text, text)) {
            if (inTransaction) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            for (int first = 0; first < records; first += 5) {
                var sent = new HashMap<String, Future<RecordMetadata>>();
                for (int number = first; number < first + 5; number++) {
                    String value = Integer.toString(number);
                    sent.put(value, producer.send(new ProducerRecord<>(topic, 0, null, value)));
                }
                sent.forEach((value, future) -> answer.add(outcome(value, future)));
            }
            if (inTransaction) {
                producer.commitTransaction();
            }
        }
        return answer;
    }

    private static String outcome(String value, Future<RecordMetadata> future) {
        try {
            future.get();
            return "+" + value;
        } catch (ExecutionException error) {
            return "-" + code(error.getCause());
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private List<String> read(String topic) {
        try (var consumer = consumer(Map.of())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            return all(consumer);
        }
    }

    private List<String> join(String topic) {
        member = consumer(Map.of("group.id", "group of " + topic));
        member.subscribe(List.of(topic));
        List<String> errors = all(member);
        var committed = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(records));
        for (int attempt = 0; attempt < attempts; attempt++) {
            try {
                member.commitSync(committed);
                break;
            } catch (RuntimeException error) {
                errors.add("-commit: " + code(error));
            }
        }
        return errors;
    }

    private List<String> poll() {
        try {
            member.poll(Duration.ofMillis(500));
            return List.of();
        } catch (RuntimeException error) {
            return List.of("-poll: " + code(error));
        }
    }

    private List<String> leave() {
        try (var left = member) {
            long sum = left.committed(left.assignment()).values().stream()
                .mapToLong(one -> one == null ? 0 : one.offset()).sum();
            return sum == records ? List.of() : List.of("-committed " + sum);
        }
    }

    /** Poll until all records came; return the errors, and whether a record came twice. */
    private List<String> all(KafkaConsumer<String, String> consumer) {
        var errors = new ArrayList<String>();
        var got = new HashMap<Long, Integer>();
        while (got.size() < records) {
            try {
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(300))) {
                    got.merge(one.offset(), 1, Integer::sum);
                }
            } catch (RuntimeException error) {
                errors.add("-poll: " + code(error));
            }
        }
        if (got.values().stream().anyMatch(times -> times > 1)) {
            errors.add("-read twice");
        }
        return errors;
    }

    private KafkaConsumer<String, String> consumer(Map<String, Object> more) {
        Map<String, Object> settings = settings();
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.putAll(more);
        var text = new StringDeserializer();
        return new KafkaConsumer<>(settings, text, text);
    }

    private Map<String, Object> settings() {
        return new HashMap<>(Map.of("bootstrap.servers", bootstrap, "client.id", "client"));
    }

    private static String code(Throwable error) {
        Errors known = Errors.forException(error);
        boolean isNamed = known != Errors.UNKNOWN_SERVER_ERROR;
        return isNamed ? known.name() : error.getClass().getSimpleName();
    }
}
