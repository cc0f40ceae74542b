/* Transactions of several producers at a broker: java Transactions.java ADDRESS WHAT ...

   fill TOPIC SEED COUNT BYTES   writes batches of a seed's choice to partition 0, in
                                 transactions that are committed, aborted or, at the
                                 end, left open, and some outside of any
   end                           ends the open ones: their producers come back
   read TOPIC ISOLATION          prints offset and value of each record of partition 0
   bounds TOPIC [PARTITION]      prints the start, the last stable offset and the end */

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;

public class Transactions {
    private static final int PRODUCERS = 3;
    private static String address;

    private static Properties properties(String... more) {
        Properties result = new Properties();
        result.put("bootstrap.servers", address);
        for (int at = 0; at < more.length; at += 2) {
            result.put(more[at], more[at + 1]);
        }
        return result;
    }

    private static KafkaProducer<byte[], byte[]> producer(String... more) {
        Properties all = properties(more);
        String serializer = "org.apache.kafka.common.serialization.ByteArraySerializer";
        all.put("key.serializer", serializer);
        all.put("value.serializer", serializer);
        all.put("max.block.ms", "120000");
        return new KafkaProducer<>(all);
    }

    private static KafkaProducer<byte[], byte[]> transactional(int number) {
        String codec = number == 1 ? "gzip" : "none";
        KafkaProducer<byte[], byte[]> made = producer(
            "transactional.id", "t" + number, "transaction.timeout.ms", "600000", "compression.type", codec);
        made.initTransactions();
        return made;
    }

    private static void fill(String topic, long seed, int count, int bytes) throws Exception {
        Random random = new Random(seed);
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        boolean[] isOpen = new boolean[PRODUCERS];
        for (int number = 0; number < PRODUCERS; number++) {
            producers.add(transactional(number));
        }
        KafkaProducer<byte[], byte[]> plain = producer();
        for (int step = 0; step < count; step++) {
            int number = random.nextInt(PRODUCERS + 1);
            KafkaProducer<byte[], byte[]> chosen = number < PRODUCERS ? producers.get(number) : plain;
            boolean isLast = step >= count - PRODUCERS;
            if (number < PRODUCERS && isOpen[number] && !isLast && random.nextInt(3) == 0) {
                if (random.nextBoolean()) {
                    chosen.commitTransaction();
                } else {
                    chosen.abortTransaction();
                }
                isOpen[number] = false;
                continue;
            }
            if (number < PRODUCERS && !isOpen[number]) {
                chosen.beginTransaction();
                isOpen[number] = true;
            }
            for (int record = random.nextInt(4); record >= 0; record--) {
                byte[] value = new byte[bytes];
                random.nextBytes(value);
                chosen.send(new ProducerRecord<>(topic, 0, null, value));
            }
            chosen.flush();
        }
        System.out.println("FILLED");
        System.out.flush();
        // Without an end of what is open.
        Runtime.getRuntime().halt(0);
    }

    private static void read(String topic, String isolation) {
        TopicPartition place = new TopicPartition(topic, 0);
        Properties all = properties("isolation.level", isolation, "auto.offset.reset", "earliest");
        String deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        all.put("key.deserializer", deserializer);
        all.put("value.deserializer", deserializer);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(all)) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            // With read_committed: the last stable offset.
            long end = consumer.endOffsets(List.of(place)).get(place);
            while (consumer.position(place) < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    StringBuilder hex = new StringBuilder();
                    for (byte one : record.value()) {
                        hex.append(String.format("%02x", one));
                    }
                    System.out.println(record.offset() + " " + hex);
                }
            }
        }
    }

    private static long offset(Admin admin, TopicPartition place, OffsetSpec spec, IsolationLevel level)
            throws Exception {
        return admin.listOffsets(Map.of(place, spec), new ListOffsetsOptions(level)).partitionResult(place)
            .get().offset();
    }

    private static void bounds(String topic, int partition) throws Exception {
        TopicPartition place = new TopicPartition(topic, partition);
        try (Admin admin = Admin.create(properties())) {
            System.out.println(offset(admin, place, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
                + " " + offset(admin, place, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
                + " " + offset(admin, place, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED));
        }
    }

    public static void main(String[] given) throws Exception {
        address = given[0];
        switch (given[1]) {
            case "fill":
                fill(given[2], Long.parseLong(given[3]), Integer.parseInt(given[4]), Integer.parseInt(given[5]));
                break;
            case "end":
                for (int number = 0; number < PRODUCERS; number++) {
                    transactional(number).close();
                }
                break;
            case "read":
                read(given[2], given[3]);
                break;
            default:
                bounds(given[2], given.length > 3 ? Integer.parseInt(given[3]) : 0);
        }
    }
}
