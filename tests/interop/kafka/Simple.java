/* A client for brokers that no client of a later release can talk to, those of 0.8.2; with the classes of that release.
 *
 *   java Simple.java ADDRESS send TOPIC CODEC         a line of stdin for each record: key, value; prints its offset
 *   java Simple.java ADDRESS read TOPIC               prints the lines that Records.java prints
 *   java Simple.java ADDRESS commit GROUP TOPIC OFFSET METADATA
 *   java Simple.java ADDRESS committed GROUP TOPIC    prints offset and metadata
 *
 * Of partition 0.  Bytes are hex digits behind an x, or "-" for none. */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import kafka.api.ConsumerMetadataRequest;
import kafka.api.FetchRequestBuilder;
import kafka.api.PartitionOffsetRequestInfo;
import kafka.common.OffsetAndMetadata;
import kafka.common.OffsetMetadataAndError;
import kafka.common.TopicAndPartition;
import kafka.javaapi.ConsumerMetadataResponse;
import kafka.javaapi.FetchResponse;
import kafka.javaapi.OffsetCommitRequest;
import kafka.javaapi.OffsetFetchRequest;
import kafka.javaapi.OffsetRequest;
import kafka.javaapi.consumer.SimpleConsumer;
import kafka.message.MessageAndOffset;
import kafka.network.BlockingChannel;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

public class Simple {
    private static final int BYTES = 1 << 20;
    private static final short KAFKA = 1; // keeps offsets in Kafka; 0 in ZooKeeper
    private static final long SECONDS = 60;

    private static String hex(ByteBuffer bytes) {
        if (bytes == null) {
            return "-";
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        return "x" + HexFormat.of().formatHex(copy);
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : HexFormat.of().parseHex(text.substring(1));
    }

    private static void send(String address, String topic, String codec) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("compression.type", codec);
        settings.put("linger.ms", "5");
        settings.put("batch.size", "2000");
        String serializer = "org.apache.kafka.common.serialization.ByteArraySerializer";
        settings.put("key.serializer", serializer);
        settings.put("value.serializer", serializer);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split("\t");
                sent.add(producer.send(new ProducerRecord<>(topic, 0, bytes(words[0]), bytes(words[1]))));
            }
            for (Future<RecordMetadata> one : sent) {
                System.out.println(one.get().offset());
            }
        }
    }

    private static void read(SimpleConsumer consumer, String topic) {
        TopicAndPartition place = new TopicAndPartition(topic, 0);
        long offset = bound(consumer, place, -2), end = bound(consumer, place, -1);
        while (offset < end) {
            FetchResponse response =
                consumer.fetch(new FetchRequestBuilder().clientId("simple").addFetch(topic, 0, offset, BYTES).build());
            if (response.hasError()) {
                throw new IllegalStateException("error " + response.errorCode(topic, 0) + " at " + offset);
            }
            for (MessageAndOffset one : response.messageSet(topic, 0)) {
                if (one.offset() >= offset) { // a wrapper begins before it
                    String key = hex(one.message().key()), value = hex(one.message().payload());
                    System.out.println(topic + "\t0\t" + one.offset() + "\t-1\t-1\t" + key + "\t" + value + "\t");
                    offset = one.offset() + 1;
                }
            }
        }
    }

    private static long bound(SimpleConsumer consumer, TopicAndPartition place, long which) {
        OffsetRequest request =
            new OffsetRequest(Map.of(place, new PartitionOffsetRequestInfo(which, 1)), (short) 0, "simple");
        return consumer.getOffsetsBefore(request).offsets(place.topic(), 0)[0];
    }

    /* The topic of the groups is made when somebody asks for the coordinator. */
    private static void awaitCoordinator(String host, int port, String group) throws Exception {
        BlockingChannel channel = new BlockingChannel(host, port, -1, -1, 10_000);
        channel.connect();
        for (long left = SECONDS * 5; ; left--) {
            channel.send(new ConsumerMetadataRequest(group, (short) 0, 1, "simple"));
            if (ConsumerMetadataResponse.readFrom(channel.receive().buffer()).errorCode() == 0) {
                channel.disconnect();
                return;
            }
            if (left == 0) {
                throw new IllegalStateException("no coordinator");
            }
            Thread.sleep(200);
        }
    }

    private static void commit(SimpleConsumer consumer, String[] words) throws Exception {
        TopicAndPartition place = new TopicAndPartition(words[3], 0);
        OffsetAndMetadata offset =
            new OffsetAndMetadata(Long.parseLong(words[4]), words[5], System.currentTimeMillis());
        for (long left = SECONDS * 5; ; left--) {
            short error = consumer
                .commitOffsets(new OffsetCommitRequest(words[2], Map.of(place, offset), 1, "simple", KAFKA))
                .errorCode(place);
            if (error == 0) {
                return;
            }
            if (left == 0) {
                throw new IllegalStateException("error " + error);
            }
            Thread.sleep(200);
        }
    }

    public static void main(String[] words) throws Exception {
        String host = words[0].split(":")[0];
        int port = Integer.parseInt(words[0].split(":")[1]);
        SimpleConsumer consumer = new SimpleConsumer(host, port, 60_000, BYTES, "simple");
        switch (words[1]) {
            case "send" -> send(words[0], words[2], words[3]);
            case "read" -> read(consumer, words[2]);
            case "commit" -> {
                awaitCoordinator(host, port, words[2]);
                commit(consumer, words);
            }
            case "committed" -> {
                TopicAndPartition place = new TopicAndPartition(words[3], 0);
                OffsetMetadataAndError found = consumer
                    .fetchOffsets(new OffsetFetchRequest(words[2], List.of(place), KAFKA, 1, "simple"))
                    .offsets()
                    .get(place);
                System.out.println(found.offset() + "\t" + found.metadata());
            }
            default -> throw new IllegalArgumentException(words[1]);
        }
        consumer.close();
    }
}
